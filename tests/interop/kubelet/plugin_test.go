package kubelet

import (
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"interop/harness/fakeplugin"
	"interop/kubelet/common/protocol"
)

// startPublished is a fake plugin with both sockets, registered.
func (c *cluster) startPublished(t *testing.T, settings protocol.PluginSettings) fakeplugin.Plugin {
	t.Helper()
	plugin := c.startFakePlugin(t, c.RegistrationSocket, c.DriverSocket)
	plugin.Configure(t, settings)
	plugin.Do(t, protocol.PluginCommand{Command: protocol.ServeCSI})
	plugin.Do(t, protocol.PluginCommand{Command: protocol.PublishByRename})
	return plugin
}

// Every command of the fake plugin has the effect that it is meant to have on a kubelet.
func TestFakePlugin(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		plugin := c.startPublished(t, fakeSettings)
		if got, want := plugin.AwaitCall(t, "GetInfo").Authority, c.release.authority(c.RegistrationSocket); got != want {
			t.Errorf(":authority is %q, want %q", got, want)
		}
		c.awaitRegistered(t)
		c.wantState(t, c.sockets(), fakeDriver)

		plugin.Do(t, protocol.PluginCommand{Command: protocol.Unlink})
		c.awaitUnregistered(t)
		plugin.Do(t, protocol.PluginCommand{Command: protocol.Publish})
		c.awaitRegistered(t)

		plugin.Do(t, protocol.PluginCommand{Command: protocol.Close})
		plugin.Do(t, protocol.PluginCommand{Command: protocol.CloseCSI})
		c.settle(t)
		c.wantState(t, c.sockets(), fakeDriver)
		c.kubelet.Send(t, protocol.KubeletCommand{Command: protocol.RestartKubelet})
		failed := c.await(t, protocol.KubeletEvent{Event: protocol.OperationFailed, Socket: c.RegistrationSocket})
		wantText(t, failed.Error, "RegisterPlugin error -- dial failed at socket "+c.RegistrationSocket)
		c.wantStates(t, c.sockets(), nil, fakeDriver)
	})
}

// A plugin that cannot say its name is asked again, each time after twice as long.
func TestGetInfoFails(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		settings := fakeSettings
		settings.Faults = map[string]protocol.Fault{"GetInfo": {Times: 2, Code: uint32(codes.Unavailable), Message: "not yet"}}
		c.startPublished(t, settings)
		for _, backoff := range []string{"500ms", "1s"} {
			failed := c.await(t, protocol.KubeletEvent{Event: protocol.OperationFailed, Socket: c.RegistrationSocket})
			wantText(t, failed.Error, "failed to get plugin info using RPC GetInfo at socket "+c.RegistrationSocket)
			if failed.Backoff != backoff {
				t.Errorf("backoff is %s, want %s", failed.Backoff, backoff)
			}
		}
		c.awaitRegistered(t)
		c.wantState(t, c.sockets(), fakeDriver)
	})
}

// A plugin that answers its good news with an error loses its registration from 1.36 on and gets it back, so that the
// notification comes twice; earlier kubelets log it.
func TestNotificationRefused(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		settings := fakeSettings
		settings.Faults = map[string]protocol.Fault{"NotifyRegistrationStatus": {Times: 1, Code: uint32(codes.Internal), Message: "no"}}
		c.startPublished(t, settings)
		failed := c.await(t, protocol.KubeletEvent{Event: protocol.OperationFailed, Socket: c.RegistrationSocket})
		wantText(t, failed.Error, "failed to send registration status at socket "+c.RegistrationSocket)
		registrations, deregistrations := 1, 0
		if c.release.retries {
			registrations, deregistrations = 2, 1
			c.awaitRegistered(t)
		} else {
			c.awaitPass(t)
		}
		c.wantState(t, c.sockets(), fakeDriver)
		if got := c.calls(protocol.Register); got != registrations {
			t.Errorf("registered %d times, want %d", got, registrations)
		}
		if got := c.calls(protocol.Deregister); got != deregistrations {
			t.Errorf("deregistered %d times, want %d", got, deregistrations)
		}
	})
}

// A driver without a node id. 1.17 does not survive it in its handler: the operation panics, the plugin is told nothing, and
// the socket counts as registered.
func TestEmptyNodeID(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		settings := fakeSettings
		settings.NodeID = ""
		c.startPublished(t, settings)
		if c.release.panicsWithoutNodeID {
			failed := c.await(t, protocol.KubeletEvent{Event: protocol.OperationFailed, Socket: c.RegistrationSocket})
			wantText(t, failed.Error, "nil pointer dereference")
			c.wantState(t, c.sockets())
			return
		}
		wantText(t, c.awaitRefused(t), "plugin registration failed with err: error adding CSI driver node info: driverNodeID must not be empty")
	})
}

// awaitPass returns after a pass of the reconciler that began after the call: another plugin is registered.
func (c *cluster) awaitPass(t *testing.T) {
	t.Helper()
	other := c.startFakePlugin(t, filepath.Join(c.RegistrationDir, "pass.sock"), c.DriverSocket)
	other.Do(t, protocol.PluginCommand{Command: protocol.Configure, Settings: &protocol.PluginSettings{Type: "Pass"}})
	other.Do(t, protocol.PluginCommand{Command: protocol.Publish})
	wantText(t, c.awaitRefused(t), "no handler registered for plugin type: Pass")
	other.Do(t, protocol.PluginCommand{Command: protocol.Unlink})
	c.settle(t)
}

// authority is what the kubelet's client makes of the path that it dials.
func (r release) authority(path string) string {
	if r.encodes {
		return strings.ReplaceAll(path, "/", "%2F")
	}
	return path
}
