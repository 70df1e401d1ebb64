package common

import (
	"errors"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/volume"

	"interop/kubelet/common/protocol"
)

// Host is the kubelet as its volume plugins see it, as far as the CSI plugin needs it to register drivers. What it does not
// implement panics. Releases differ in CSIDriverLister, which each adds.
type Host struct {
	volume.VolumeHost
	volume.KubeletVolumeHost

	Informers informers.SharedInformerFactory

	client clientset.Interface
	events *Events
	ready  chan struct{}
}

// NewHost has informers that are not started yet.
func NewHost(server *APIServer, events *Events) *Host {
	return &Host{
		Informers: informers.NewSharedInformerFactory(server.Client, 0),
		client:    server.Client,
		events:    events,
		ready:     make(chan struct{}, 1),
	}
}

// Ready is sent to when the CSINode is initialised. A kubelet starts its plugin manager without waiting for that; an
// installation that comes first replaces the CSINode (from 1.35 on), which is a race and no subject here.
func (h *Host) Ready() <-chan struct{} { return h.ready }

// SetKubeletError is part of volume.KubeletVolumeHost.
func (h *Host) SetKubeletError(err error) {
	h.events.Write(protocol.KubeletEvent{Event: protocol.KubeletError, Error: text(err)})
	if err == nil {
		h.ready <- struct{}{}
	}
}

// GetInformerFactory is part of volume.KubeletVolumeHost.
func (h *Host) GetInformerFactory() informers.SharedInformerFactory { return h.Informers }

// GetKubeClient is part of volume.VolumeHost.
func (h *Host) GetKubeClient() clientset.Interface { return h.client }

// GetNodeName is part of volume.VolumeHost.
func (h *Host) GetNodeName() types.NodeName { return NodeName }

// GetServiceAccountTokenFunc is part of volume.VolumeHost: asked for at the start, and no registration needs a token.
func (h *Host) GetServiceAccountTokenFunc() func(namespace, name string, tr *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return func(string, string, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
		return nil, errors.New("this kubelet has no service account tokens")
	}
}
