// Package registration registers a CSI driver through the registrar's real binary as the kubelet does it: with grpc-go, the
// kubelet's limits, and the :authority values that no Rust client can send.
package registration

import (
	"context"
	"flag"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"interop/harness"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// manyCalls on one connection: enough for HPACK's dynamic table to turn over and for a leak per call to show.
const manyCalls = 10_000

// exitLimit bounds the registrar's end, the 2 s included that it gives a call in flight.
const exitLimit = 5 * time.Second

// hold is what the kubelet's channel sits idle between its two calls; it waits up to 2 min for the driver, and for the
// API server after that.
var hold = flag.Duration("hold", 2*time.Second, "idle time between GetInfo and the notification; 130s is the slowest kubelet")

// A kubelet registers, restarts and registers again; then the registrar is told to stop.
func TestRegistration(t *testing.T) {
	everyAuthority(t, func(t *testing.T, form authority) {
		t.Parallel() // The time goes into holding.
		node := harness.NewNode(t)
		node.StartDriver(t)
		registrar := node.StartRegistrar(t)

		t.Run("register", func(t *testing.T) { register(t, node, form, *hold) })
		t.Run("register_again", func(t *testing.T) { register(t, node, form, 0) })
		t.Run("stop", func(t *testing.T) {
			registrar.Terminate(t)
			wantExit(t, registrar, 0)
			wantNoSocket(t, node)
		})
	})
}

// The kubelet refuses: each consequence is a check of its own.
func TestRefusal(t *testing.T) {
	const reason = "boom"
	everyAuthority(t, func(t *testing.T, form authority) {
		node := harness.NewNode(t)
		node.StartDriver(t)
		registrar := node.StartRegistrar(t)
		op := mustDial(t, node, form)
		wantInfo(t, node, op)

		t.Run("answered", func(t *testing.T) {
			if err := op.notify(false, reason); err != nil {
				t.Errorf("the refusal was not answered: %v", err)
			}
			if err := op.sameConnection(); err != nil {
				t.Error(err)
			}
		})
		t.Run("exit_1", func(t *testing.T) { wantExit(t, registrar, 1) })
		t.Run("reason_in_termination_log", func(t *testing.T) {
			message, err := os.ReadFile(node.TerminationLog)
			if err != nil {
				t.Fatalf("no termination message: %v", err)
			}
			if !strings.Contains(string(message), reason) {
				t.Errorf("termination message %q lacks the kubelet's reason %q", message, reason)
			}
		})
		t.Run("socket_gone", func(t *testing.T) { wantNoSocket(t, node) })
	})
}

// Ten thousand calls on one connection, then a notification on it.
func TestManyCalls(t *testing.T) {
	everyAuthority(t, func(t *testing.T, form authority) {
		node := harness.NewNode(t)
		node.StartDriver(t)
		node.StartRegistrar(t)
		op := mustDial(t, node, form)
		begin := time.Now()
		for range manyCalls {
			wantInfo(t, node, op)
		}
		t.Logf("%d calls, %s each", manyCalls, time.Since(begin)/manyCalls)
		if err := op.notify(true, ""); err != nil {
			t.Errorf("the notification after them: %v", err)
		}
		if err := op.sameConnection(); err != nil {
			t.Error(err)
		}
	})
}

// The client's own honesty: a server of grpc-go's tells what it was sent.
func TestAuthorityOnTheWire(t *testing.T) {
	everyAuthority(t, func(t *testing.T, form authority) {
		dir, err := os.MkdirTemp("", "wire")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		path := filepath.Join(dir, "reg.sock")
		listener, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		server, echo := grpc.NewServer(), &authorityEcho{}
		registerapi.RegisterRegistrationServer(server, echo)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)

		op, err := dial(path, form)
		if err != nil {
			t.Fatal(err)
		}
		defer op.close()
		info, err := op.getInfo()
		if err != nil {
			t.Fatal(err)
		}
		want := map[authority]string{
			percentEncoded: strings.ReplaceAll(path, "/", "%2F"),
			rawPath:        path,
			localhost:      "localhost",
		}[form]
		if info.Name != want {
			t.Errorf(":authority is %q, want %q", info.Name, want)
		}
	})
}

// authorityEcho tells the request's :authority as the plugin's name.
type authorityEcho struct {
	registerapi.UnimplementedRegistrationServer
}

func (*authorityEcho) GetInfo(ctx context.Context, _ *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	received, _ := metadata.FromIncomingContext(ctx)
	return &registerapi.PluginInfo{Name: strings.Join(received.Get(":authority"), " ")}, nil
}

func everyAuthority(t *testing.T, test func(*testing.T, authority)) {
	for _, form := range authorities {
		t.Run(string(form), func(t *testing.T) { test(t, form) })
	}
}

// register is one whole registration, the kubelet's question to the driver included.
func register(t *testing.T, node *harness.Node, form authority, hold time.Duration) {
	t.Helper()
	op := mustDial(t, node, form)
	endpoint := wantInfo(t, node, op).Endpoint

	info, err := nodeGetInfo(endpoint)
	if err != nil {
		t.Fatalf("the driver at the endpoint that was told: %v", err)
	}
	if info.NodeId != harness.DriverName || info.MaxVolumesPerNode != harness.AttachLimit || len(info.AccessibleTopology.GetSegments()) != 1 {
		t.Errorf("the endpoint is not the mock driver's: NodeGetInfo tells %v", info)
	}

	if err := op.hold(hold); err != nil {
		t.Fatal(err)
	}
	if err := op.notify(true, ""); err != nil {
		t.Fatalf("the notification, %s after GetInfo: %v", hold, err)
	}
	if err := op.sameConnection(); err != nil {
		t.Error(err)
	}
}

func mustDial(t *testing.T, node *harness.Node, form authority) *operation {
	t.Helper()
	op, err := dial(node.RegistrationSocket, form)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(op.close)
	return op
}

func wantInfo(t *testing.T, node *harness.Node, op *operation) *registerapi.PluginInfo {
	t.Helper()
	info, err := op.getInfo()
	if err != nil {
		t.Fatalf("GetInfo: %v", err)
	}
	want := &registerapi.PluginInfo{
		Type:              registerapi.CSIPlugin,
		Name:              harness.DriverName,
		Endpoint:          node.DriverSocket,
		SupportedVersions: []string{"1.0.0"},
	}
	if !proto.Equal(info, want) {
		t.Fatalf("GetInfo tells %v, want %v", info, want)
	}
	return info
}

func wantExit(t *testing.T, registrar *harness.Process, want int) {
	t.Helper()
	code, err := registrar.AwaitExit(exitLimit)
	if err != nil {
		t.Fatal(err)
	}
	if code != want {
		t.Errorf("exit code %d, want %d", code, want)
	}
}

func wantNoSocket(t *testing.T, node *harness.Node) {
	t.Helper()
	wantNothing(t, node.RegistrationSocket)
}
