package registration

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"interop/harness"
)

// The exec probes and the preStop hook of an image without a shell, beside the registrar that they are for.
func TestSubcommands(t *testing.T) {
	node := harness.NewNode(t)
	node.StartDriver(t)
	registrar := node.StartRegistrar(t)

	wantEnd(t, 0, "")(node.Probe(t))
	wantEnd(t, 1, "has not confirmed the registration")(node.Probe(t, "--registered"))
	register(t, node, percentEncoded, 0)
	wantEnd(t, 0, "")(node.Probe(t, "--registered"))

	const gone = "gone.csi.example"
	socket, directory := leftBehind(t, node, gone)
	for range 2 { // What is absent is no failure.
		wantEnd(t, 0, "")(node.Cleanup(t, gone))
		wantNothing(t, socket)
		wantNothing(t, directory)
	}
	wantEnd(t, 0, "")(node.Probe(t, "--registered"))

	registrar.Terminate(t)
	wantExit(t, registrar, 0)
	wantNoSocket(t, node)
}

// leftBehind makes what a killed registrar, and the original's manifests, leave in the registration directory.
func leftBehind(t *testing.T, node *harness.Node, driver string) (socket, directory string) {
	t.Helper()
	socket = filepath.Join(node.RegistrationDir, driver+"-reg.sock")
	directory = filepath.Join(node.RegistrationDir, driver)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if err := errors.Join(listener.Close(), os.Mkdir(directory, 0o750)); err != nil {
		t.Fatal(err)
	}
	return socket, directory
}

// wantEnd checks a command's exit code and that it wrote one line with this in it; nothing at all for "".
func wantEnd(t *testing.T, code int, line string) func(int, string) {
	return func(gotCode int, output string) {
		t.Helper()
		if gotCode != code || !strings.Contains(output, line) || (line == "") != (output == "") || strings.Count(output, "\n") > 1 {
			t.Errorf("exit code %d and output %q, want %d and one line with %q", gotCode, output, code, line)
		}
	}
}

func wantNothing(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there (lstat: %v)", path, err)
	}
}
