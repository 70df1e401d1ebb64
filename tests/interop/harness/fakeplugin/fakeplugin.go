// Package fakeplugin speaks to the fake plugin, a driver and its registrar with faults on demand.
package fakeplugin

import (
	"testing"
	"time"

	"interop/harness"
	"interop/kubelet/common/protocol"
)

// patience is for what should happen at once.
const patience = time.Minute

// Plugin is a running one.
type Plugin struct {
	*harness.Talker[protocol.PluginEvent]
}

// Start binds no socket yet.
func Start(t *testing.T, directory, bin, registrationSocket, driverSocket string) Plugin {
	t.Helper()
	return Plugin{harness.StartTalker[protocol.PluginEvent](t, directory, bin,
		"-registration-socket="+registrationSocket, "-csi-socket="+driverSocket)}
}

// Configure replaces all its settings.
func (p Plugin) Configure(t *testing.T, settings protocol.PluginSettings) {
	t.Helper()
	p.Do(t, protocol.PluginCommand{Command: protocol.Configure, Settings: &settings})
}

// Do fails unless the command is carried out.
func (p Plugin) Do(t *testing.T, command protocol.PluginCommand) {
	t.Helper()
	p.Send(t, command)
	done := p.Await(t, command.Command, patience, func(e protocol.PluginEvent) bool {
		return e.Event == protocol.Done || e.Event == protocol.Failed
	})
	if done.Event == protocol.Failed {
		t.Fatalf("fake plugin: %s: %s", done.Command, done.Text)
	}
}

// AwaitCall returns the first call of the method, which may have come before the command that let it was answered.
func (p Plugin) AwaitCall(t *testing.T, method string) protocol.PluginEvent {
	t.Helper()
	called := func(e protocol.PluginEvent) bool { return e.Event == protocol.Called && e.Method == method }
	for _, e := range p.Events() {
		if called(e) {
			return e
		}
	}
	return p.Await(t, method, patience, called)
}
