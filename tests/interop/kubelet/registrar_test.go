// Package kubelet holds the registrar's release binary against the kubelet's own code of three releases: the plugin manager,
// the CSI plugin's handler and its node info manager, each in a process of its own (v1.37, v1.28, v1.17).
package kubelet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"
	"interop/harness"
	"interop/kubelet/common/protocol"
)

func TestRegistration(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		c.StartDriver(t)
		registrar := c.StartRegistrar(t)
		c.awaitRegistered(t)
		c.wantState(t, c.sockets(), mockDriver)

		terminate(t, registrar)
		wantNoFile(t, c.RegistrationSocket)
		c.awaitUnregistered(t)
		if c.release.unregisters {
			c.await(t, protocol.KubeletEvent{Event: protocol.HandlerReturned, Call: protocol.Deregister})
			c.wantState(t, nil)
			c.wantFailures(t)
		} else {
			c.wantStates(t, nil, c.sockets(), mockDriver)
		}
	})
}

// The kubelet loses its memory, the API server does not.
func TestKubeletRestart(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		c.StartDriver(t)
		registrar := c.StartRegistrar(t)
		for range 3 {
			c.awaitRegistered(t)
			c.wantState(t, c.sockets(), mockDriver)
			c.kubelet.Send(t, protocol.KubeletCommand{Command: protocol.RestartKubelet})
			c.await(t, protocol.KubeletEvent{Event: protocol.ManagerStarted})
		}
		c.awaitRegistered(t)
		c.wantState(t, c.sockets(), mockDriver)
		c.wantFailures(t)
		terminate(t, registrar)
	})
}

func TestRegistrarTerminatedAndRestarted(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		c.StartDriver(t)
		registrar := c.StartRegistrar(t)
		c.awaitRegistered(t)
		terminate(t, registrar)

		registrar = c.StartRegistrar(t)
		c.awaitRegistered(t)
		c.wantState(t, c.sockets(), mockDriver)
		terminate(t, registrar)
	})
}

// A registrar that comes back only after the kubelet has dealt with the removal.
func TestRegistrarTerminatedAndRestartedLater(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		c.StartDriver(t)
		registrar := c.StartRegistrar(t)
		c.awaitRegistered(t)
		terminate(t, registrar)
		c.awaitUnregistered(t)

		registrar = c.StartRegistrar(t)
		c.awaitRegistered(t)
		c.wantState(t, c.sockets(), mockDriver)
		terminate(t, registrar)
	})
}

// A killed registrar leaves its socket: the kubelet never sees the path vanish, and the driver stays registered.
func TestRegistrarKilledAndRestarted(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		c.StartDriver(t)
		registrar := c.StartRegistrar(t)
		c.awaitRegistered(t)
		registrar.Kill(t)
		c.settle(t)
		c.wantState(t, c.sockets(), mockDriver)

		registrar = c.StartRegistrar(t)
		c.awaitRegistered(t)
		c.wantState(t, c.sockets(), mockDriver)
		c.wantFailures(t)
		if c.removals(c.RegistrationSocket) != 0 {
			t.Error("the kubelet saw the socket vanish")
		}
		terminate(t, registrar)
	})
}

// A surge upgrade: the successor is there before the predecessor goes.
func TestOverlapOldEndsFirst(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		c.StartDriver(t)
		predecessor := c.StartRegistrar(t)
		c.awaitRegistered(t)
		successor := c.StartRegistrar(t)
		c.awaitRegistered(t)
		c.wantState(t, c.sockets(), mockDriver)

		terminate(t, predecessor)
		c.settle(t)
		c.wantState(t, c.sockets(), mockDriver)
		c.wantFailures(t)
		if c.removals(c.RegistrationSocket) != 0 {
			t.Error("the predecessor took the successor's socket away")
		}
		terminate(t, successor)
	})
}

// An upgrade that is taken back: the newer registrar goes, the older must take over again.
func TestOverlapNewEndsFirst(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		c.StartDriver(t)
		older := c.StartRegistrar(t)
		c.awaitRegistered(t)
		newer := c.StartRegistrar(t)
		c.awaitRegistered(t)

		terminate(t, newer)
		c.await(t, protocol.KubeletEvent{Event: protocol.DesiredRemoved, Socket: c.RegistrationSocket})
		c.awaitRegistered(t)
		c.wantState(t, c.sockets(), mockDriver)
		terminate(t, older)
		wantNoFile(t, c.RegistrationSocket)
	})
}

func TestSocketDeleted(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		c.StartDriver(t)
		registrar := c.StartRegistrar(t)
		c.awaitRegistered(t)

		if err := os.Remove(c.RegistrationSocket); err != nil {
			t.Fatal(err)
		}
		c.await(t, protocol.KubeletEvent{Event: protocol.DesiredRemoved, Socket: c.RegistrationSocket})
		c.awaitRegistered(t)
		c.wantState(t, c.sockets(), mockDriver)
		terminate(t, registrar)
	})
}

// The same driver comes back at the same socket: nothing that the kubelet has to know.
func TestDriverRestart(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		driver := c.startFakeDriver(t, nil)
		registrar := c.StartRegistrar(t)
		c.awaitRegistered(t)

		driver.Kill(t)
		driver = c.startFakeDriver(t, nil)
		driver.AwaitCall(t, "GetPluginInfo")
		c.settle(t)
		c.wantState(t, c.sockets(), fakeDriver)
		c.wantFailures(t)
		if calls := c.calls(protocol.Register); calls != 1 {
			t.Errorf("the kubelet registered %d times, want once", calls)
		}
		terminate(t, registrar)
	})
}

// With the flag it is registered anew, and what its NodeGetInfo tells now arrives.
func TestDriverRestartReregistered(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		driver := c.startFakeDriver(t, nil)
		registrar := c.StartRegistrar(t, "--reregister-on-driver-restart")
		c.awaitRegistered(t)
		c.wantState(t, c.sockets(), fakeDriver)

		driver.Kill(t)
		driver = c.startFakePlugin(t, "", c.DriverSocket)
		settings := fakeSettings
		settings.MaxVolumes = 9
		driver.Configure(t, settings)
		driver.Do(t, protocol.PluginCommand{Command: protocol.ServeCSI})
		c.awaitRegistered(t)
		larger := fakeDriver
		larger.Allocatable = larger.Allocatable.DeepCopy()
		larger.Allocatable.Count = pointer(9)
		c.wantState(t, c.sockets(), larger)
		c.wantFailures(t)
		terminate(t, registrar)
	})
}

// failingNodeGetInfo makes that many registrations fail.
func (c *cluster) failingNodeGetInfo(registrations int) map[string]protocol.Fault {
	return map[string]protocol.Fault{
		"NodeGetInfo": {Times: registrations * c.release.nodeGetInfoAttempts, Code: uint32(codes.Internal), Message: nodeGetInfoReason},
	}
}

// The registrar exits with the kubelet's reason; the next one, as the pod's restart brings it, registers.
func TestNodeGetInfoFailsThenWorks(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		c.startFakeDriver(t, c.failingNodeGetInfo(1))
		registrar := c.StartRegistrar(t)
		reason := c.awaitRefused(t)
		wantText(t, reason, "plugin registration failed with err: "+c.release.nodeGetInfoFailure)
		c.wantExitWithReason(t, registrar, reason)
		wantNoFile(t, c.RegistrationSocket)

		registrar = c.StartRegistrar(t)
		c.awaitRegistered(t)
		c.wantState(t, c.sockets(), fakeDriver)
		terminate(t, registrar)
	})
}

// The same process goes on until it is registered, whether the kubelet tries again by itself or needs a new socket.
func TestNodeGetInfoFailsThenWorksWithRetry(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		const refusals = 2
		c.startFakeDriver(t, c.failingNodeGetInfo(refusals))
		registrar := c.StartRegistrar(t, "--registration-failure-policy=retry")
		for range refusals {
			wantText(t, c.awaitRefused(t), c.release.nodeGetInfoFailure)
		}
		c.awaitRegistered(t)
		c.wantState(t, c.sockets(), fakeDriver)
		terminate(t, registrar)
	})
}

// The kubelet's connection to the registrar sits idle meanwhile; the notification must come over the same one.
func TestSlowNodeGetInfo(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		driver := c.startFakeDriver(t, map[string]protocol.Fault{"NodeGetInfo": {DelayMS: int(slow.Milliseconds())}})
		registrar := c.StartRegistrar(t)
		c.await(t, protocol.KubeletEvent{Event: protocol.HandlerCalled, Call: protocol.Register})
		driver.Await(t, "the answer to NodeGetInfo", *slow+patience, func(e protocol.PluginEvent) bool {
			return e.Event == protocol.Answered && e.Method == "NodeGetInfo" && e.Code == codes.OK.String()
		})
		c.awaitRegistered(t)
		c.wantState(t, c.sockets(), fakeDriver)
		c.wantFailures(t)
		terminate(t, registrar)
	})
}

// Another registrar, under another file name, holds the driver's name: the kubelet refuses ours and keeps the other.
func TestDuplicateRefused(t *testing.T) {
	everyRelease(t, func(t *testing.T, c *cluster) {
		other := filepath.Join(c.RegistrationDir, "other-reg.sock")
		c.startFakeDriver(t, nil)
		first := c.startFakePlugin(t, other, c.DriverSocket)
		first.Configure(t, fakeSettings)
		first.Do(t, protocol.PluginCommand{Command: protocol.Publish})
		c.awaitRegistered(t)

		registrar := c.StartRegistrar(t)
		reason := c.awaitRefused(t)
		wantText(t, reason, "Another driver with the same name is already registered with a higher supported version")
		c.wantExitWithReason(t, registrar, reason)
		wantNoFile(t, c.RegistrationSocket)
		c.settle(t)
		c.wantState(t, []string{other}, fakeDriver)
	})
}

func (c *cluster) sockets() []string { return []string{c.RegistrationSocket} }

// removals counts how often the kubelet saw the file go.
func (c *cluster) removals(path string) int {
	return c.count(func(e protocol.KubeletEvent) bool { return e.Event == protocol.DesiredRemoved && e.Socket == path })
}

// calls counts the handler's.
func (c *cluster) calls(call string) int {
	return c.count(func(e protocol.KubeletEvent) bool { return e.Event == protocol.HandlerCalled && e.Call == call })
}

func (c *cluster) count(match func(protocol.KubeletEvent) bool) int {
	n := 0
	for _, event := range c.kubelet.Events() {
		if match(event) {
			n++
		}
	}
	return n
}

// wantExitWithReason is what a refusal ends in under the default policy.
func (c *cluster) wantExitWithReason(t *testing.T, registrar *harness.Process, reason string) {
	t.Helper()
	wantExit(t, registrar, 1)
	message, err := os.ReadFile(c.TerminationLog)
	if err != nil {
		t.Fatalf("no termination message: %v", err)
	}
	wantText(t, string(message), reason)
}

func wantNoFile(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there (lstat: %v)", path, err)
	}
}
