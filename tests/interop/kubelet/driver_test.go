package kubelet

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"

	"interop/harness"
	"interop/harness/fakeplugin"
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

// startFakeDriver serves CSI with fakeSettings and the faults.
func (c *cluster) startFakeDriver(t *testing.T, faults map[string]protocol.Fault) fakeplugin.Plugin {
	t.Helper()
	driver := c.startFakePlugin(t, "", c.DriverSocket)
	settings := fakeSettings
	settings.Faults = faults
	driver.Configure(t, settings)
	driver.Do(t, protocol.PluginCommand{Command: protocol.ServeCSI})
	return driver
}

func (c *cluster) startFakePlugin(t *testing.T, registrationSocket, driverSocket string) fakeplugin.Plugin {
	t.Helper()
	return fakeplugin.Start(t, c.Root, *fakePluginBin, registrationSocket, driverSocket)
}
