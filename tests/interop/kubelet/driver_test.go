package kubelet

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"

	"interop/harness"
	"interop/kubelet/common/protocol"
)

// mockDriver is what the kubelet makes of Kubernetes' mock driver.
var mockDriver = storagev1.CSINodeDriver{
	Name:         harness.DriverName,
	NodeID:       harness.DriverName,
	TopologyKeys: []string{service.TopologyKey},
	Allocatable:  &storagev1.VolumeNodeResources{Count: pointer(harness.AttachLimit)},
}

// What the fake plugin's NodeGetInfo tells, and what the kubelet makes of it.
var (
	fakeSettings = protocol.PluginSettings{
		Name:       harness.DriverName,
		NodeID:     "fake-node-id",
		MaxVolumes: 3,
		Topology:   map[string]string{"example.com/zone": "z1", "example.com/rack": "r1"},
	}
	fakeDriver = storagev1.CSINodeDriver{
		Name:         harness.DriverName,
		NodeID:       "fake-node-id",
		TopologyKeys: []string{"example.com/rack", "example.com/zone"},
		Allocatable:  &storagev1.VolumeNodeResources{Count: pointer(3)},
	}
)

func pointer(count int32) *int32 { return &count }

// fakePlugin is the program of that name, as a driver at the node's driver socket, or as a plugin of its own.
type fakePlugin struct {
	*harness.Talker[protocol.PluginEvent]
}

// startFakeDriver serves CSI with fakeSettings and the faults.
func (c *cluster) startFakeDriver(t *testing.T, faults map[string]protocol.Fault) fakePlugin {
	t.Helper()
	driver := c.startFakePlugin(t, "", c.DriverSocket)
	settings := fakeSettings
	settings.Faults = faults
	driver.do(t, protocol.PluginCommand{Command: protocol.Configure, Settings: &settings})
	driver.do(t, protocol.PluginCommand{Command: protocol.ServeCSI})
	return driver
}

func (c *cluster) startFakePlugin(t *testing.T, registrationSocket, driverSocket string) fakePlugin {
	t.Helper()
	return startFakePlugin(t, c.Root, registrationSocket, driverSocket)
}

func startFakePlugin(t *testing.T, root, registrationSocket, driverSocket string) fakePlugin {
	t.Helper()
	return fakePlugin{harness.StartTalker[protocol.PluginEvent](t, root, *fakePluginBin,
		"-registration-socket="+registrationSocket, "-csi-socket="+driverSocket)}
}

// do fails unless the command is carried out.
func (p fakePlugin) do(t *testing.T, command protocol.PluginCommand) {
	t.Helper()
	p.Send(t, command)
	done := p.Await(t, command.Command, patience, func(e protocol.PluginEvent) bool {
		return e.Event == protocol.Done || e.Event == protocol.Failed
	})
	if done.Event == protocol.Failed {
		t.Fatalf("fake plugin: %s: %s", done.Command, done.Text)
	}
}

func (p fakePlugin) awaitCall(t *testing.T, method string) protocol.PluginEvent {
	t.Helper()
	called := func(e protocol.PluginEvent) bool { return e.Event == protocol.Called && e.Method == method }
	// A registrar that watches the directory may call before the command that let it is answered.
	for _, e := range p.Events() {
		if called(e) {
			return e
		}
	}
	return p.Await(t, method, patience, called)
}
