package node

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// rollingUpdate as DaemonSets do it by default: the old pod goes, the new one comes.
func rollingUpdate(t *testing.T, c *cluster) {
	d := c.driver(t, "base", "rolling")
	update(t, d, readyLimit, d.updated)
}

// maxSurge: the new pod is ready before the old one goes. They share the driver's directory and the registry.
func maxSurge(t *testing.T, c *cluster) {
	d := c.driver(t, "surge", "surging")
	missed := false
	update(t, d, passes, func(old types.UID) string {
		missed = missed || !slices.ContainsFunc(c.world.podsIn(d.namespace), isReady)
		return d.updated(old)
	})
	if missed {
		t.Error("meanwhile no pod was ready")
	}
}

// update lets the driver be out of the CSINode once, for as long. Whether it is over is asked with the old pod's identity.
func update(t *testing.T, d *driver, longest time.Duration, over func(types.UID) string) {
	t.Helper()
	d.apply(t)
	d.awaitReady(t)
	old := d.pod(t).UID
	seen := d.c.world.follow(t, d.name)
	d.change(t, "- --v=2\n", "- --v=3\n")
	d.c.kubectl(t, d.manifest, "apply", "--filename=-")
	d.c.world.await(t, readyLimit, "the new pod is the only one, ready, the driver registered", func() string { return over(old) })
	d.c.world.hold(t, moment, "and stays so", func() string { return over(old) })
	d.wantRestarts(t, 0, 0)
	d.c.world.wantAbsences(t, seen, 1, longest)
}

// updated is the end of a rollout as the DaemonSet's status shows it, and the state that it must leave.
func (d *driver) updated(old types.UID) string {
	daemonSet := d.c.world.daemonSet(d.namespace, d.daemonSet)
	if daemonSet == nil {
		return "no DaemonSet"
	}
	status := daemonSet.Status
	if status.ObservedGeneration != daemonSet.Generation || status.UpdatedNumberScheduled != 1 || status.NumberAvailable != 1 {
		return fmt.Sprintf("the rollout goes on: %+v", status)
	}
	for _, pod := range d.c.world.podsIn(d.namespace) {
		if pod.UID == old {
			return "the old pod is still there"
		}
	}
	return d.ready()
}
