// Command kubelet1.28 runs the plugin manager and the CSI handler of Kubernetes 1.28 on a directory.
package main

import (
	"flag"
	"io"

	"google.golang.org/grpc/encoding"
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
		Version:          "v1.28.15",
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
	encoding.Codec
	observe func(message interface{})
}

func observeMessages(observe func(message interface{})) {
	encoding.RegisterCodec(codec{encoding.GetCodec("proto"), observe})
}

func (c codec) Marshal(v interface{}) ([]byte, error) {
	c.observe(v)
	return c.Codec.Marshal(v)
}

func (c codec) Unmarshal(data []byte, v interface{}) error {
	if err := c.Codec.Unmarshal(data, v); err != nil {
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
	manager := pluginmanager.NewPluginManager(dir, record.NewFakeRecorder(0))
	manager.AddHandler(registerapi.CSIPlugin, handler{events})
	manager.Run(nil, stop) // It has no use for the pods' sources.
}

// handler tells the calls of the CSI plugin's.
type handler struct{ events *common.Events }

func (h handler) ValidatePlugin(name, endpoint string, versions []string) error {
	return h.events.Handle(
		protocol.KubeletEvent{Call: protocol.Validate, Name: name, Endpoint: endpoint, Versions: versions},
		func() error { return csi.PluginHandler.ValidatePlugin(name, endpoint, versions) })
}

func (h handler) RegisterPlugin(name, endpoint string, versions []string) error {
	return h.events.Handle(
		protocol.KubeletEvent{Call: protocol.Register, Name: name, Endpoint: endpoint, Versions: versions},
		func() error { return csi.PluginHandler.RegisterPlugin(name, endpoint, versions) })
}

func (h handler) DeRegisterPlugin(name string) {
	_ = h.events.Handle(protocol.KubeletEvent{Call: protocol.Deregister, Name: name}, func() error {
		csi.PluginHandler.DeRegisterPlugin(name)
		return nil
	})
}
