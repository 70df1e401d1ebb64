// Package node runs the registrar as a cluster does: deploy/ applied to a real Kubernetes of one node, with our image in a
// DaemonSet and nothing simulated but the driver. tests/node/run makes what it needs, and the namespaces that it runs in.
package node

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"testing"
)

// TestNode brings the cluster up once. Scenarios that leave the kubelet alone are side by side; those that do not follow.
func TestNode(t *testing.T) {
	c := startCluster(t)
	c.scenario(t, "Base", base)
	t.Run("SideBySide", func(t *testing.T) {
		for name, scenario := range map[string]func(*testing.T, *cluster){
			"GracefulDelete":          gracefulDelete,
			"DriverKilled":            driverKilled,
			"RegistrarKilled":         registrarKilled,
			"RegistrarHangs/Apart":    registrarHangsApart,
			"RegistrarHangs/Merged":   registrarHangsMerged,
			"RollingUpdate":           rollingUpdate,
			"MaxSurge":                maxSurge,
			"SocketDeleted":           socketDeleted,
			"NodeGetInfoFails":        nodeGetInfoFails,
			"TopologyCollision":       topologyCollision,
			"PreStop":                 preStop,
			"ThreeDrivers":            threeDrivers,
			"DriverHangs/Merged":      driverHangsMerged,
			"DriverHangs/DropIn":      driverHangsDropIn,
			"TightestSecurityContext": tightestSecurityContext,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				scenario(t, c)
			})
		}
	})
	c.scenario(t, "KubeletKilled", kubeletKilled)
	c.scenario(t, "PowerCut", powerCut)
}

func (c *cluster) scenario(t *testing.T, name string, scenario func(*testing.T, *cluster)) {
	t.Run(name, func(t *testing.T) { scenario(t, c) })
}

// TestByHand is the cluster with the example applied, for as long as the shell lives.
func TestByHand(t *testing.T) {
	c := startCluster(t)
	d := c.driver(t, "base", "hostpath")
	d.apply(t)
	d.awaitReady(t)
	// What a script starts in the background ignores it; whoever catches it hands the default to the shell.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	shell := exec.Command("bash")
	shell.Stdin, shell.Stdout, shell.Stderr = os.Stdin, os.Stdout, os.Stderr
	shell.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(*folder, "admin.kubeconfig"), "PATH="+*binaries+":"+os.Getenv("PATH"))
	_ = shell.Run() // The last command's code is no result.
}
