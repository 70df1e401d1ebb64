// Command kubelet is the plugin manager and the CSI plugin of Kubernetes 1.37 with a client of a real API server: what a
// kubelet asks it while plugins come and go. It says {"event":"watching"} when the CSINode is initialised, as our plugin
// manager does, and ends with SIGTERM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/csi"
)

func main() {
	dir := flag.String("dir", "", "plugin registration directory to watch")
	kubeconfig := flag.String("kubeconfig", "", "file with the node's identity")
	nodeName := flag.String("node-name", "", "name of the node")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, *kubeconfig, *nodeName); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir, kubeconfig, nodeName string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	h := &host{
		informers: informers.NewSharedInformerFactory(client, 0),
		client:    client,
		nodeName:  types.NodeName(nodeName),
		ready:     make(chan struct{}, 1),
	}
	if err := csi.ProbeVolumePlugins()[0].Init(h); err != nil {
		return fmt.Errorf("the CSI plugin does not start: %w", err)
	}
	h.informers.Start(ctx.Done())
	select {
	// A kubelet does not wait for this; what an installation does that comes first is a race and no subject here.
	case <-h.ready:
	case <-ctx.Done():
		return nil
	}
	manager := pluginmanager.NewPluginManager(dir, record.NewFakeRecorder(0))
	manager.AddHandler(registerapi.CSIPlugin, csi.PluginHandler)
	fmt.Println(`{"event":"watching"}`)
	manager.Run(ctx, nil, ctx.Done())
	return nil
}

// host is the kubelet as its CSI plugin needs it to register drivers. What it does not implement panics.
type host struct {
	volume.VolumeHost
	volume.KubeletVolumeHost

	informers informers.SharedInformerFactory
	client    kubernetes.Interface
	nodeName  types.NodeName
	ready     chan struct{}
}

func (h *host) SetKubeletError(err error) {
	if err == nil {
		h.ready <- struct{}{}
	}
}

func (h *host) CSIDriverLister() storagelisters.CSIDriverLister {
	return h.informers.Storage().V1().CSIDrivers().Lister()
}

func (h *host) GetInformerFactory() informers.SharedInformerFactory { return h.informers }

func (h *host) GetKubeClient() kubernetes.Interface { return h.client }

func (h *host) GetNodeName() types.NodeName { return h.nodeName }

func (h *host) GetServiceAccountTokenFunc() func(namespace, name string, tr *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return func(string, string, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
		return nil, errors.New("this kubelet has no service account tokens")
	}
}
