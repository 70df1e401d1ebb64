// Command mockdriver serves the CSI mock driver of Kubernetes' end-to-end suite on a Unix socket, so that the registrar
// registers a driver that was not written with it in mind.
package main

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"log"
	"net"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func main() {
	address := flag.String("csi-address", "", "path of the socket to listen on; a file that is there is replaced")
	name := flag.String("driver-name", service.Name, "name that GetPluginInfo tells, and the node id")
	attachLimit := flag.Int64("attach-limit", 0, "max_volumes_per_node that NodeGetInfo tells; 0: none")
	topology := flag.Bool("topology", false, "tell a topology segment in NodeGetInfo")
	faults := flag.String("faults", "", "directory in which a file named as a method (NodeGetInfo) makes its calls fail with the file's text")
	flag.Parse()

	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	listener, err := listen(*address)
	if err != nil {
		log.Fatalf("cannot listen for CSI calls: %v", err)
	}
	var interceptor grpc.UnaryServerInterceptor
	if *faults != "" {
		interceptor = failing(*faults)
	}
	mock := service.New(service.Config{DriverName: *name, AttachLimit: *attachLimit, EnableTopology: *topology})
	server := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: mock, Identity: mock, Node: inlineVolumes{mock}})
	if err := server.Start(listener, interceptor); err != nil {
		log.Fatalf("cannot serve CSI on %s: %v", *address, err)
	}
	<-stop.Done()
	server.Stop()
}

// inlineVolumes are directories. The suite's own driver panics over a volume that no controller has made.
type inlineVolumes struct{ csi.NodeServer }

func (inlineVolumes) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, os.MkdirAll(request.GetTargetPath(), 0o755)
}

func (inlineVolumes) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(request.GetTargetPath())
}

// listen replaces what a killed predecessor left, and leaves the file when it closes: by then it may be a successor's.
func listen(address string) (net.Listener, error) {
	if err := os.Remove(address); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: address})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	return listener, nil
}

// failing looks at each call anew: the file may come and go.
func failing(faults string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		method := path.Base(info.FullMethod)
		if fault, err := os.ReadFile(filepath.Join(faults, method)); err == nil {
			log.Printf("%s: fails as asked: %s", method, fault)
			return nil, status.Error(codes.Internal, string(fault))
		}
		response, err := handler(ctx, request)
		log.Printf("%s: %v", method, status.Code(err))
		return response, err
	}
}
