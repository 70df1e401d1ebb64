package node

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

// examplePod is in deploy/; here it runs what there is an image for.
const examplePod = "../../deploy/example-pod.yaml"

// base is deploy/ as it is.
func base(t *testing.T, c *cluster) {
	d := c.driver(t, "base", "hostpath")
	d.change(t, withTopology...)
	d.apply(t)
	d.awaitReady(t)
	entry := c.world.driver(d.name)
	if len(entry.TopologyKeys) != 1 || entry.TopologyKeys[0] != service.TopologyKey {
		t.Errorf("topology keys %q, want %q alone", entry.TopologyKeys, service.TopologyKey)
	}
	if got := c.world.node(t).Labels[service.TopologyKey]; got != service.TopologyValue {
		t.Errorf("the Node's label %s is %q, want %q", service.TopologyKey, got, service.TopologyValue)
	}
	d.wantRestarts(t, 0, 0)

	mountVolume(t, c)

	d.delete(t)
	c.world.await(t, stopLimit, "the driver is unregistered, its pod gone", d.gone)
	// The kubelet's way: the label outlives the driver, and contradicts the next one that is elsewhere.
	if got := c.world.node(t).Labels[service.TopologyKey]; got != service.TopologyValue {
		t.Errorf("afterwards the Node's label %s is %q, want %q", service.TopologyKey, got, service.TopologyValue)
	}
}

// mountVolume is what a registration is for: a pod with a volume of the driver comes and goes.
func mountVolume(t *testing.T, c *cluster) {
	t.Helper()
	manifest, err := os.ReadFile(filepath.Join(*settings, examplePod))
	if err != nil {
		t.Fatal(err)
	}
	pod := strings.NewReplacer(
		"busybox:1.37", "localhost/pause:test",
		`["sh", "-c", "df -h /data && exec sleep 3600"]`, `["/pause"]`,
	).Replace(string(manifest))
	c.kubectl(t, pod, "apply", "--namespace=default", "--filename=-")
	c.world.await(t, readyLimit, "a pod with a volume of the driver is ready", func() string {
		for _, pod := range c.world.podsIn("default") {
			if isReady(pod) {
				return ""
			}
		}
		return "it is not"
	})
	c.kubectl(t, pod, "delete", "--namespace=default", "--filename=-", "--wait=false")
	c.world.await(t, goneLimit, "that pod is gone", func() string {
		return fewer(len(c.world.podsIn("default")))
	})
}

// withTopology is a change of a manifest: the driver tells where it is.
var withTopology = []string{"- --attach-limit=7\n", "- --attach-limit=7\n        - --topology\n"}

func fewer(pods int) string {
	if pods > 0 {
		return fmt.Sprintf("%d pods are left", pods)
	}
	return ""
}

// gracefulDelete ends before anybody had to be killed.
func gracefulDelete(t *testing.T, c *cluster) {
	d := c.driver(t, "base", "deleted")
	d.apply(t)
	d.awaitReady(t)
	d.delete(t)
	c.world.await(t, stopLimit, "the driver is unregistered, its pod gone", d.gone)
	if _, err := os.Lstat(d.registrationSocket); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", d.registrationSocket, err)
	}
}

// driverKilled does not concern the registration: the driver comes back under its name.
func driverKilled(t *testing.T, c *cluster) {
	d := c.driver(t, "base", "killed")
	d.apply(t)
	d.awaitReady(t)
	seen := c.world.follow(t, d.name)
	d.signal(t, d.container, syscall.SIGKILL)
	d.awaitRestart(t, d.container)
	d.awaitReady(t)
	d.wantRestarts(t, 1, 0)
	d.wantGet(t, "/healthz/driver", http.StatusOK, "")
	c.world.hold(t, moment, "the driver is registered", d.registered)
	c.world.wantAbsences(t, seen, 0, 0)
}

// registrarKilled leaves a socket behind, which the next one replaces.
func registrarKilled(t *testing.T, c *cluster) {
	d := c.driver(t, "base", "orphan")
	d.apply(t)
	d.awaitReady(t)
	seen := c.world.follow(t, d.name)
	d.signal(t, d.registrar, syscall.SIGKILL)
	d.awaitRestart(t, d.registrar)
	d.awaitReady(t)
	d.wantRestarts(t, 0, 1)
	c.world.wantAbsences(t, seen, 1, passes)
}

// registrarHangsApart: its liveness probe finds it, and the driver does not notice.
func registrarHangsApart(t *testing.T, c *cluster) {
	d := c.driver(t, "apart", "stuck")
	registrarHangs(t, d)
	d.wantRestarts(t, 0, 1)
}

// registrarHangsMerged: it answers for the driver no longer, so the kubelet restarts a driver that lacks nothing. How often is
// a matter of two probes' periods.
func registrarHangsMerged(t *testing.T, c *cluster) {
	d := c.driver(t, "base", "stucktoo")
	registrarHangs(t, d)
	if restarts := d.restarts(d.container); restarts < 1 || restarts > 2 {
		t.Errorf("the driver was restarted %d times, want 1 or 2", restarts)
	}
}

func registrarHangs(t *testing.T, d *driver) {
	t.Helper()
	d.apply(t)
	d.awaitReady(t)
	d.signal(t, d.registrar, syscall.SIGSTOP)
	d.c.world.await(t, livenessLimit, "the registrar is restarted", func() string { return d.wantRestart(d.registrar) })
	d.awaitReady(t)
}

// driverHangsMerged: the registrar's --liveness-endpoint tells the kubelet, and the driver's successor is asked again.
func driverHangsMerged(t *testing.T, c *cluster) {
	d := c.driver(t, "base", "hung")
	d.change(t, "- --liveness-endpoint=:9808\n", "- --liveness-endpoint=:9808\n        - --reregister-on-driver-restart\n")
	driverHangs(t, d)
}

// driverHangsDropIn: livenessprobe's image was replaced by ours.
func driverHangsDropIn(t *testing.T, c *cluster) {
	d := c.driver(t, "apart", "hungtoo")
	d.change(t, "- --http-endpoint=:9809\n", "- --http-endpoint=:9809\n        - --reregister-on-driver-restart\n")
	driverHangs(t, d)
}

func driverHangs(t *testing.T, d *driver) {
	t.Helper()
	d.apply(t)
	d.awaitReady(t)
	d.signal(t, d.container, syscall.SIGSTOP)
	d.c.world.await(t, livenessLimit, "the driver is restarted", func() string { return d.wantRestart(d.container) })
	d.awaitPublications(t, "2")
	d.awaitReady(t)
	d.wantRestarts(t, 1, 0)
	d.wantGet(t, "/healthz/driver", http.StatusOK, "")
}

// socketDeleted by somebody: the registrar publishes another, and the kubelet registers the driver again.
func socketDeleted(t *testing.T, c *cluster) {
	d := c.driver(t, "base", "swept")
	d.apply(t)
	d.awaitReady(t)
	seen := c.world.follow(t, d.name)
	if err := os.Remove(d.registrationSocket); err != nil {
		t.Fatal(err)
	}
	d.awaitPublications(t, "2")
	d.awaitReady(t)
	d.wantRestarts(t, 0, 0)
	c.world.wantAbsences(t, seen, 1, passes)
}

// preStop hooks run while the registrar cannot: it hangs, and the socket is removed all the same.
func preStop(t *testing.T, c *cluster) {
	d := c.hookDriver(t)
	d.apply(t)
	d.awaitReady(t)
	d.signal(t, d.registrar, syscall.SIGSTOP)
	d.delete(t)
	c.world.await(t, stopLimit, "the driver is unregistered", d.unregistered)
	if _, err := os.Lstat(d.registrationSocket); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", d.registrationSocket, err)
	}
	if len(c.world.podsIn(d.namespace)) == 0 {
		t.Error("the pod was gone before the grace period ended: the registrar did not hang")
	}
	c.world.await(t, goneLimit, "the pod is gone", d.gone)
	if event := c.world.event(d.namespace, "FailedPreStopHook"); event != "" {
		t.Error(event)
	}
}

// threeDrivers share the node's registry and its CSINode, and one of them goes.
func threeDrivers(t *testing.T, c *cluster) {
	var drivers []*driver
	for _, name := range []string{"one", "two", "three"} {
		d := c.driver(t, "base", name)
		d.apply(t)
		drivers = append(drivers, d)
	}
	for _, d := range drivers {
		d.awaitReady(t)
	}
	staying, going := []*driver{drivers[0], drivers[2]}, drivers[1]
	var seen []*history
	for _, d := range staying {
		seen = append(seen, c.world.follow(t, d.name))
	}
	going.delete(t)
	c.world.await(t, stopLimit, going.name+" is unregistered", going.gone)
	for i, d := range staying {
		if problem := d.ready(); problem != "" {
			t.Errorf("%s: %s", d.name, problem)
		}
		c.world.wantAbsences(t, seen[i], 0, 0)
		d.wantRestarts(t, 0, 0)
	}
}

// tightestSecurityContext is the base's; here the kernel tells that it is in force.
func tightestSecurityContext(t *testing.T, c *cluster) {
	d := c.driver(t, "base", "confined")
	d.apply(t)
	d.awaitReady(t)
	pid := containerProcess(t, d.containerID(t, d.registrar))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000",
		"NoNewPrivs:\t1", "Seccomp:\t2", "Uid:\t0\t",
	} {
		if !strings.Contains(string(status), "\n"+want) {
			t.Errorf("the registrar has not %q:\n%s", want, status)
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); fields[4] == "/" && !strings.HasPrefix(fields[5], "ro") {
			t.Errorf("the root is writable: %s", line)
		}
	}
}
