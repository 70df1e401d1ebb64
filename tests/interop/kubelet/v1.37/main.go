// Command v1.37 runs the plugin manager and the CSI handler of Kubernetes 1.37 on a directory: percent-encoded :authority,
// identity by UUID, failures retried.
package main

import (
	"context"
	"flag"
	"io"
	"time"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // Registers the codec that is overheard.
	"google.golang.org/grpc/mem"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
	"k8s.io/kubernetes/pkg/volume/csi"

	"interop/kubelet/common"
	"interop/kubelet/common/protocol"
)

func main() {
	common.Main(common.Release{
		Version:          "v1.37.2",
		CaptureLog:       captureLog,
		ObserveMessages:  observeMessages,
		InitCSI:          func(h *common.Host) error { return csi.ProbeVolumePlugins()[0].Init(host{h}) },
		RunPluginManager: runPluginManager,
	})
}

func captureLog(out io.Writer) {
	flags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(flags)
	_ = flags.Parse(common.KlogFlags()) // Panics instead.
	for severity, writer := range common.KlogOutputs(out) {
		klog.SetOutputBySeverity(severity, writer)
	}
}

// codec is grpc's own for protobuf, overheard.
type codec struct {
	encoding.CodecV2
	observe func(message any)
}

func observeMessages(observe func(message any)) {
	encoding.RegisterCodecV2(codec{encoding.GetCodecV2("proto"), observe})
}

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	c.observe(v)
	return c.CodecV2.Marshal(v)
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if err := c.CodecV2.Unmarshal(data, v); err != nil {
		return err
	}
	c.observe(v)
	return nil
}

type host struct{ *common.Host }

func (h host) CSIDriverLister() storagelisters.CSIDriverLister {
	return h.Informers.Storage().V1().CSIDrivers().Lister()
}

func runPluginManager(dir string, events *common.Events, stop <-chan struct{}) {
	// The kubelet's context ends with the kubelet, and operations in flight with it.
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-stop
		cancel()
	}()
	manager := pluginmanager.NewPluginManager(dir, record.NewFakeRecorder(0))
	manager.AddHandler(registerapi.CSIPlugin, handler{events})
	manager.Run(ctx, nil, stop) // It has no use for the pods' sources.
}

// handler tells the calls of the CSI plugin's.
type handler struct{ events *common.Events }

func (h handler) ValidatePlugin(ctx context.Context, name, endpoint string, versions []string) error {
	return h.events.Handle(
		protocol.KubeletEvent{Call: protocol.Validate, Name: name, Endpoint: endpoint, Versions: versions},
		func() error { return csi.PluginHandler.ValidatePlugin(ctx, name, endpoint, versions) })
}

func (h handler) RegisterPlugin(ctx context.Context, name, endpoint string, versions []string, timeout *time.Duration) error {
	return h.events.Handle(
		protocol.KubeletEvent{Call: protocol.Register, Name: name, Endpoint: endpoint, Versions: versions},
		func() error { return csi.PluginHandler.RegisterPlugin(ctx, name, endpoint, versions, timeout) })
}

func (h handler) DeRegisterPlugin(ctx context.Context, name, endpoint string) {
	_ = h.events.Handle(protocol.KubeletEvent{Call: protocol.Deregister, Name: name, Endpoint: endpoint}, func() error {
		csi.PluginHandler.DeRegisterPlugin(ctx, name, endpoint)
		return nil
	})
}
