package main

import (
	"context"
	"path"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"interop/kubelet/common/protocol"
)

type registration struct {
	registerapi.UnimplementedRegistrationServer
	calls *calls
}

func (r registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	settings := r.calls.current()
	return &registerapi.PluginInfo{
		Type: settings.Type, Name: settings.Name, Endpoint: *settings.Endpoint, SupportedVersions: settings.Versions,
	}, nil
}

func (r registration) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

type identity struct {
	csi.UnimplementedIdentityServer
	calls *calls
}

func (i identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.calls.current().Name, VendorVersion: "1"}, nil
}

func (i identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil // Absent means ready.
}

type node struct {
	csi.UnimplementedNodeServer
	calls *calls
}

func (n node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	settings := n.calls.current()
	response := &csi.NodeGetInfoResponse{NodeId: settings.NodeID, MaxVolumesPerNode: settings.MaxVolumes}
	if settings.Topology != nil {
		response.AccessibleTopology = &csi.Topology{Segments: settings.Topology}
	}
	return response, nil
}

func (c *calls) newServer() *grpc.Server {
	return grpc.NewServer(grpc.UnaryInterceptor(c.intercept), grpc.StatsHandler(connections{c}))
}

// intercept tells the call and its answer, and lets the fault happen in between.
func (c *calls) intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	number, _ := ctx.Value(connectionKey{}).(int)
	received, _ := metadata.FromIncomingContext(ctx)
	called := protocol.PluginEvent{
		Event: protocol.Called, Method: method, Connection: number, Authority: strings.Join(received.Get(":authority"), " "),
	}
	if notified, ok := request.(*registerapi.RegistrationStatus); ok {
		called.Registered, called.Error = &notified.PluginRegistered, notified.Error
	}
	c.events.write(called)

	response, err := befall(ctx, c.fault(method), func() (any, error) { return handler(ctx, request) })
	c.events.write(protocol.PluginEvent{
		Event: protocol.Answered, Method: method, Connection: number, Code: status.Code(err).String(),
	})
	return response, err
}

// befall answers after the delay, unless the client gives up first.
func befall(ctx context.Context, fault protocol.Fault, answer func() (any, error)) (any, error) {
	select {
	case <-time.After(time.Duration(fault.DelayMS) * time.Millisecond):
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if fault.Code != uint32(codes.OK) {
		return nil, status.Error(codes.Code(fault.Code), fault.Message)
	}
	return answer()
}

// connections numbers connections and tells their beginning and end.
type connections struct{ calls *calls }

type connectionKey struct{}

func (c connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	c.calls.lock.Lock()
	defer c.calls.lock.Unlock()
	c.calls.connections++
	return context.WithValue(ctx, connectionKey{}, c.calls.connections)
}

func (c connections) HandleConn(ctx context.Context, event stats.ConnStats) {
	number, _ := ctx.Value(connectionKey{}).(int)
	switch event.(type) {
	case *stats.ConnBegin:
		c.calls.events.write(protocol.PluginEvent{Event: protocol.Connected, Connection: number})
	case *stats.ConnEnd:
		c.calls.events.write(protocol.PluginEvent{Event: protocol.Disconnected, Connection: number})
	}
}

func (connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (connections) HandleRPC(context.Context, stats.RPCStats) {}
