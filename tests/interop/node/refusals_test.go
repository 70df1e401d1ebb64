package node

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

// nodeGetInfoFails for a while: the pod is not ready and says why, nothing is restarted, and it ends by itself.
func nodeGetInfoFails(t *testing.T, c *cluster) {
	const reason = "the storage is away"
	d := c.driver(t, "base", "failing")
	d.fail(t, "NodeGetInfo", reason)
	d.apply(t)
	c.world.await(t, readyLimit, "the registrar is refused", func() string { return d.refused(reason) })
	c.world.hold(t, moment, "the driver is unregistered, its pod not ready", d.withoutRegistration)
	d.recover(t, "NodeGetInfo")
	c.world.await(t, retryLimit, "the driver is registered, its pod ready", d.ready)
	d.wantRestarts(t, 0, 0)
}

// topologyCollision in both ways of use: with containers apart the registrar exits, and its container's status has the reason;
// merged it stays, since the driver would be restarted without its liveness endpoint. The driver itself is never touched.
func topologyCollision(t *testing.T, c *cluster) {
	const reason = "topology value collision"
	c.kubectl(t, "", "label", "node", nodeName, service.TopologyKey+"=elsewhere", "--overwrite")
	unlabel := func() { c.kubectl(t, "", "label", "node", nodeName, service.TopologyKey+"-") }
	apart, merged := c.driver(t, "apart", "collided"), c.driver(t, "base", "colliding")
	for _, d := range []*driver{apart, merged} {
		d.change(t, withTopology...)
		d.apply(t)
	}

	c.world.await(t, readyLimit, "the reason is in the container's status", func() string {
		for _, pod := range c.world.podsIn(apart.namespace) {
			status := containerStatus(pod, apart.registrar)
			if strings.Contains(message(status.LastTerminationState.Terminated)+message(status.State.Terminated), reason) {
				return ""
			}
		}
		return "it is not"
	})
	if description := c.kubectl(t, "", "describe", "pods", "--namespace="+apart.namespace); !strings.Contains(description, reason) {
		t.Errorf("kubectl describe does not show it:\n%s", description)
	}
	c.world.await(t, readyLimit, "the merged registrar is refused", func() string { return merged.refused(reason) })

	c.world.hold(t, driverLiveness, "neither is registered, and no driver restarted", func() string {
		for _, d := range []*driver{apart, merged} {
			if problem := d.withoutRegistration(); problem != "" {
				return d.name + ": " + problem
			}
			if d.restarts(d.container) != 0 {
				return d.name + " was restarted"
			}
		}
		return ""
	})
	merged.wantRestarts(t, 0, 0)
	merged.wantGet(t, "/readyz", http.StatusServiceUnavailable, reason)

	unlabel()
	for _, d := range []*driver{apart, merged} {
		c.world.await(t, retryLimit, d.name+" is registered, its pod ready", d.ready)
	}
	merged.wantRestarts(t, 0, 0)
}
