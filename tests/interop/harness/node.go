// Package harness is what surrounds a registrar on a node: the kubelet's directories, a CSI driver, and the processes'
// lives. What the kubelet does with the registration socket is left to the tests.
package harness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
)

// The CSI driver of every node here, and what its NodeGetInfo tells.
const (
	DriverName  = "mock.csi.example"
	AttachLimit = 7
)

// readyLimit bounds how long a freshly started process may take to publish its socket.
const readyLimit = 10 * time.Second

// maxSocketPath is the longest path a Unix socket can be bound to: sun_path less its terminating NUL.
const maxSocketPath = 107

// terminationFlag is not known to every registrar that speaks the protocol.
const terminationFlag = "termination-log-path"

var (
	registrarBin  = flag.String("registrar", "", "path of the registrar's binary")
	mockDriverBin = flag.String("mockdriver", "", "path of the mock driver's binary")
)

// Node is a directory laid out as the kubelet's root directory.
type Node struct {
	// Root is the kubelet's root directory; RegistrationDir is the one in it that the kubelet watches.
	Root            string
	RegistrationDir string
	// DriverSocket is where the driver listens; container and host path are one here.
	DriverSocket string
	// RegistrationSocket is where the registrar publishes.
	RegistrationSocket string
	// TerminationLog does not exist at first.
	TerminationLog string
}

// NewNode makes the directories; they are removed with the test.
func NewNode(t *testing.T) *Node {
	t.Helper()
	// Not t.TempDir: it holds the test's name, and a socket's path is short.
	root, err := os.MkdirTemp("", "node")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	registrationDir := filepath.Join(root, "plugins_registry")
	n := &Node{
		Root:               root,
		RegistrationDir:    registrationDir,
		DriverSocket:       filepath.Join(root, "plugins", DriverName, "csi.sock"),
		RegistrationSocket: filepath.Join(registrationDir, DriverName+"-reg.sock"),
		TerminationLog:     filepath.Join(root, "termination-log"),
	}
	if length := len(n.RegistrationSocket); length > maxSocketPath {
		t.Fatalf("%s has %d bytes, a socket's path at most %d: choose a shorter TMPDIR", n.RegistrationSocket, length, maxSocketPath)
	}
	for _, dir := range []string{registrationDir, filepath.Dir(n.DriverSocket)} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// StartDriver returns once the mock driver's socket exists.
func (n *Node) StartDriver(t *testing.T) *Process {
	t.Helper()
	return n.startPublisher(t, n.DriverSocket, required(t, mockDriverBin, "mockdriver"),
		"--csi-address="+n.DriverSocket,
		"--driver-name="+DriverName,
		fmt.Sprintf("--attach-limit=%d", AttachLimit),
		"--topology")
}

// StartLivenessProbe starts the registrar's binary as the drop-in for the sidecar livenessprobe, with a port of its own.
func (n *Node) StartLivenessProbe(t *testing.T, more ...string) *Process {
	t.Helper()
	args := append([]string{"livenessprobe", "--csi-address=" + n.DriverSocket, "--http-endpoint=127.0.0.1:0"}, more...)
	return Start(t, n.Root, required(t, registrarBin, "registrar"), args...)
}

// StartRegistrar returns once the registration socket exists, which must be the first thing that the kubelet's watcher
// would take for a plugin. Flags come after those that every registrar is started with.
func (n *Node) StartRegistrar(t *testing.T, flags ...string) *Process {
	t.Helper()
	bin := required(t, registrarBin, "registrar")
	return n.startPublisher(t, n.RegistrationSocket, bin, append(n.registrarFlags(bin), flags...)...)
}

// Probe runs the registrar's exec probe, with its flags and these; it returns the exit code and what was written.
func (n *Node) Probe(t *testing.T, flags ...string) (int, string) {
	t.Helper()
	bin := required(t, registrarBin, "registrar")
	return runToEnd(t, bin, slices.Concat([]string{"probe"}, n.registrarFlags(bin), flags)...)
}

// Cleanup runs the registrar's preStop hook for the driver of that name, as Probe does.
func (n *Node) Cleanup(t *testing.T, driver string) (int, string) {
	t.Helper()
	bin := required(t, registrarBin, "registrar")
	return runToEnd(t, bin, "cleanup", "--driver-name="+driver, "--plugin-registration-path="+n.RegistrationDir)
}

func (n *Node) registrarFlags(bin string) []string {
	flags := []string{
		"--v=2",
		"--csi-address=" + n.DriverSocket,
		"--kubelet-registration-path=" + n.DriverSocket,
		"--plugin-registration-path=" + n.RegistrationDir,
	}
	if knows(bin, terminationFlag) {
		flags = append(flags, "--"+terminationFlag+"="+n.TerminationLog)
	}
	return flags
}

func (n *Node) startPublisher(t *testing.T, socket, bin string, args ...string) *Process {
	t.Helper()
	// The watch comes first, as the kubelet's does: no event is lost.
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	if err := watcher.Add(filepath.Dir(socket)); err != nil {
		t.Fatal(err)
	}
	p := Start(t, n.Root, bin, args...)
	limit := time.After(readyLimit)
	for {
		select {
		case event := <-watcher.Events:
			if !event.Has(fsnotify.Create) || strings.HasPrefix(filepath.Base(event.Name), ".") {
				continue
			}
			if event.Name != socket {
				t.Fatalf("%s appeared, want %s", event.Name, socket)
			}
			return p
		case err := <-watcher.Errors:
			t.Fatal(err)
		case <-p.Exited():
			t.Fatalf("%s ended before it published %s: %s", filepath.Base(bin), socket, p.cmd.ProcessState)
		case <-limit:
			t.Fatalf("no %s within %s", socket, readyLimit)
		}
	}
}

// runToEnd returns the exit code and what was written.
func runToEnd(t *testing.T, bin string, args ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	output, err := cmd.CombinedOutput()
	if exited := new(exec.ExitError); err != nil && (!errors.As(err, &exited) || !exited.Exited()) {
		t.Fatalf("%s: %v", cmd, err)
	}
	return cmd.ProcessState.ExitCode(), string(output)
}

// knows tells whether the usage text names the flag: a registrar without it is still measured by everything else.
func knows(bin, flag string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	usage, _ := exec.CommandContext(ctx, bin, "--help").CombinedOutput() // Its exit code is no matter here.
	return strings.Contains(string(usage), flag)
}

func required(t *testing.T, path *string, name string) string {
	t.Helper()
	if *path == "" {
		t.Fatalf("-%s is not given; the run script beside the tests builds what they need and starts them", name)
	}
	return *path
}
