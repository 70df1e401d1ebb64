// Package liveness asks the registrar's real binary whether Kubernetes' CSI mock driver lives, with the kubelet's own HTTP
// prober: as the drop-in for the sidecar livenessprobe, and beside the registrar.
package liveness

import (
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"interop/harness"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/probe"
	probehttp "k8s.io/kubernetes/pkg/probe/http"
)

const (
	// kubeletTimeout is a manifest's timeoutSeconds, and the sidecar's own --probe-timeout by default.
	kubeletTimeout = 3 * time.Second
	// listenLimit bounds how long a freshly started process may take to listen, and to end.
	listenLimit = 10 * time.Second
	// manyProbes are a day's of a driver that is probed every ten seconds, about.
	manyProbes = 10_000
)

// served is the log line that tells the address; the drop-in listens before its driver is there.
var served = regexp.MustCompile(`"HTTP server listening" endpoint="([^"]+)" serves="liveness"`)

// ways are the two ways of use, each started beside a driver that runs.
var ways = map[string]func(*testing.T, *harness.Node) *harness.Process{
	"drop_in": func(t *testing.T, node *harness.Node) *harness.Process {
		return node.StartLivenessProbe(t)
	},
	"registrar": func(t *testing.T, node *harness.Node) *harness.Process {
		return node.StartRegistrar(t, "--liveness-endpoint=127.0.0.1:0")
	},
}

// A driver runs, hangs, goes on, dies and comes back; the kubelet hears each time within its own timeout.
func TestDriverLife(t *testing.T) {
	everyWay(t, func(t *testing.T, node *harness.Node, driver, sidecar *harness.Process) {
		ask := prober(t, sidecar)
		want(t, ask, probe.Success, "ok")

		// Stopped, not gone: its socket still takes connections.
		driver.Freeze(t)
		begin := time.Now()
		wantFailure(t, ask, sidecar, "DeadlineExceeded")
		if took := time.Since(begin); took < kubeletTimeout*9/10 {
			t.Errorf("a driver that hangs was given up after %s", took)
		}
		driver.Thaw(t)
		want(t, ask, probe.Success, "ok")

		driver.Terminate(t)
		<-driver.Exited()
		begin = time.Now()
		wantFailure(t, ask, sidecar, node.DriverSocket)
		if took := time.Since(begin); took > time.Second {
			t.Errorf("a driver that is gone was waited for %s", took)
		}
		node.StartDriver(t)
		want(t, ask, probe.Success, "ok")
		stop(t, sidecar)
	})
}

// The drop-in is started first, as a pod's containers may be.
func TestDriverComesLate(t *testing.T) {
	node := harness.NewNode(t)
	sidecar := node.StartLivenessProbe(t)
	ask := prober(t, sidecar)
	wantFailure(t, ask, sidecar, "waiting for the CSI driver")
	node.StartDriver(t)
	want(t, ask, probe.Success, "ok")
	stop(t, sidecar)
}

// Each of the kubelet's probes is a connection of its own.
func TestManyProbes(t *testing.T) {
	everyWay(t, func(t *testing.T, _ *harness.Node, _, sidecar *harness.Process) {
		ask := prober(t, sidecar)
		begin := time.Now()
		for range manyProbes {
			want(t, ask, probe.Success, "ok")
		}
		t.Logf("%d probes, %s each", manyProbes, time.Since(begin)/manyProbes)
		if failures := strings.Count(sidecar.Output(), "Health check"); failures != 0 {
			t.Errorf("%d log lines about probes that succeeded", failures)
		}
		stop(t, sidecar)
	})
}

func everyWay(t *testing.T, test func(t *testing.T, node *harness.Node, driver, sidecar *harness.Process)) {
	for name, start := range ways {
		t.Run(name, func(t *testing.T) {
			node := harness.NewNode(t)
			driver := node.StartDriver(t)
			test(t, node, driver, start(t, node))
		})
	}
}

type asking func() (probe.Result, string, error)

// prober is the kubelet's, for the livenessProbe of a driver's container whose port is the sidecar's.
func prober(t *testing.T, sidecar *harness.Process) asking {
	t.Helper()
	host, port := address(t, sidecar)
	action := &v1.HTTPGetAction{Path: "/healthz", Host: host, Port: intstr.FromInt32(port)}
	request, err := probehttp.NewRequestForHTTPGetAction(action, &v1.Container{}, host, "probe")
	if err != nil {
		t.Fatal(err)
	}
	prober := probehttp.New(false)
	return func() (probe.Result, string, error) { return prober.Probe(request, kubeletTimeout) }
}

func address(t *testing.T, sidecar *harness.Process) (string, int32) {
	t.Helper()
	limit := time.After(listenLimit)
	for {
		if found := served.FindStringSubmatch(sidecar.Output()); found != nil {
			host, port, err := net.SplitHostPort(found[1])
			if err != nil {
				t.Fatal(err)
			}
			number, err := strconv.ParseInt(port, 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			return host, int32(number)
		}
		select {
		case <-sidecar.Exited():
			t.Fatal("the sidecar ended before it listened")
		case <-limit:
			t.Fatalf("no line %s within %s", served, listenLimit)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// wantFailure asks once. The answer must come before the kubelet gives up waiting, which it would word otherwise; the reason
// is in the sidecar's log, since the kubelet's event tells no more than the status.
func wantFailure(t *testing.T, ask asking, sidecar *harness.Process, reason string) {
	t.Helper()
	want(t, ask, probe.Failure, "HTTP probe failed with statuscode: 500")
	if !strings.Contains(sidecar.Output(), reason) {
		t.Errorf("no %q in the log", reason)
	}
}

func want(t *testing.T, ask asking, result probe.Result, text string) {
	t.Helper()
	got, output, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	if got != result || !strings.Contains(output, text) {
		t.Fatalf("the kubelet's probe: %s %q, want %s with %q", got, output, result, text)
	}
}

func stop(t *testing.T, sidecar *harness.Process) {
	t.Helper()
	sidecar.Terminate(t)
	code, err := sidecar.AwaitExit(time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}
