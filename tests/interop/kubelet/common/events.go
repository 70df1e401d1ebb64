package common

import (
	"encoding/json"
	"io"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"interop/kubelet/common/protocol"
)

// timeFormat is RFC 3339 with microseconds, of one width.
const timeFormat = "2006-01-02T15:04:05.000000Z07:00"

// Events writes what happens in a kubelet, one line at a time.
type Events struct {
	lock sync.Mutex
	out  io.Writer
}

// Write adds the time; a line is never interleaved with another.
func (e *Events) Write(event protocol.KubeletEvent) {
	e.lock.Lock()
	defer e.lock.Unlock()
	event.At = time.Now().UTC().Format(timeFormat)
	line, err := json.Marshal(event)
	if err != nil {
		panic(err) // The objects come from encoders: they are valid JSON.
	}
	// A reader that is gone has closed our input too, which ends the process.
	_, _ = e.out.Write(append(line, '\n'))
}

// Message is told every message that gRPC encodes or decodes.
func (e *Events) Message(message interface{}) {
	switch m := message.(type) {
	case *registerapi.PluginInfo:
		e.Write(protocol.KubeletEvent{
			Event: protocol.PluginInfo, Type: m.Type, Name: m.Name, Endpoint: m.Endpoint, Versions: m.SupportedVersions,
		})
	case *registerapi.RegistrationStatus:
		registered := m.PluginRegistered
		e.Write(protocol.KubeletEvent{Event: protocol.Notification, Registered: &registered, Error: m.Error})
	case *registerapi.RegistrationStatusResponse:
		e.Write(protocol.KubeletEvent{Event: protocol.NotificationAnswered})
	case *csi.NodeGetInfoResponse:
		e.Write(protocol.KubeletEvent{
			Event: protocol.NodeInfo, NodeID: m.NodeId, MaxVolumes: m.MaxVolumesPerNode, Topology: m.GetAccessibleTopology().GetSegments(),
		})
	}
}

// unregistering is how long an unregistration takes at least. Where one ends within the pass that began it, which is chance,
// the socket's registration may begin in that pass, too.
const unregistering = 50 * time.Millisecond

// Handle tells a call of the CSI plugin handler around it; a handler's call that returns nothing returns nil here.
func (e *Events) Handle(called protocol.KubeletEvent, call func() error) error {
	called.Event = protocol.HandlerCalled
	e.Write(called)
	err := call()
	e.Write(protocol.KubeletEvent{Event: protocol.HandlerReturned, Call: called.Call, Name: called.Name, Error: text(err)})
	if called.Call == protocol.Deregister {
		time.Sleep(unregistering)
	}
	return err
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
