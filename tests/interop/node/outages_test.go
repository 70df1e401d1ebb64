package node

import (
	"os"
	"path/filepath"
	"testing"
)

// kubeletKilled: the next kubelet finds the socket and registers the driver, and the pod has not noticed.
func kubeletKilled(t *testing.T, c *cluster) {
	d := c.driver(t, "base", "outlived")
	d.apply(t)
	d.awaitReady(t)
	pod := d.pod(t).UID
	c.kill(t, "kubelet")
	c.start(t, "kubelet")
	c.world.await(t, startLimit, "the kubelet has confirmed the driver once more", func() string {
		if confirmed := d.metric(t, `csi_registrar_notifications_total{driver_name="`+d.name+`",result="registered"}`); confirmed != "2" {
			return confirmed + " confirmations"
		}
		return c.world.nodeReady()
	})
	d.awaitReady(t)
	d.wantRestarts(t, 0, 0)
	if d.pod(t).UID != pod {
		t.Error("the pod is another one")
	}
	d.awaitPublications(t, "1")
}

// powerCut: nobody could remove anything. The pod is the same, its containers are new, what they left is in their way.
func powerCut(t *testing.T, c *cluster) {
	d := c.driver(t, "base", "cut")
	d.apply(t)
	d.awaitReady(t)
	c.world.stop()
	cutPower(t)
	for _, stale := range []string{d.registrationSocket, filepath.Join(d.directory, "csi.sock")} {
		if _, err := os.Lstat(stale); err != nil {
			t.Errorf("the power cut has left less than it should: %v", err)
		}
	}
	c.startAll(t)
	c.world.await(t, startLimit, "both containers are restarted", func() string {
		if problem := d.wantRestart(d.container); problem != "" {
			return problem
		}
		return d.wantRestart(d.registrar)
	})
	d.awaitReady(t)
	d.wantRestarts(t, 1, 1)
}
