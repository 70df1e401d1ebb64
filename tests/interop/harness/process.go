package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stopLimit is how long a process may take to end once it was asked to, before it is killed.
const stopLimit = 5 * time.Second

// logTail bounds what a failing test shows of a process's output, in bytes.
const logTail = 16 << 10

// freezeLimit bounds how long the threads of a process may take to stop.
const freezeLimit = 10 * time.Second

// Process is a program under test that runs beside it; its end is an event, and its output is shown when the test fails.
type Process struct {
	cmd     *exec.Cmd
	logPath string
	exited  chan struct{}
}

// Start keeps what the process writes in a file in the directory; the process ends with the test.
func Start(t *testing.T, dir, bin string, args ...string) *Process {
	t.Helper()
	return launch(t, dir, exec.Command(bin, args...))
}

// launch gives the process's output a file of its own in the directory; standard output only if it has no place yet.
func launch(t *testing.T, dir string, cmd *exec.Cmd) *Process {
	t.Helper()
	output, err := os.CreateTemp(dir, filepath.Base(cmd.Path)+"-*.log")
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	p := &Process{cmd: cmd, logPath: output.Name(), exited: make(chan struct{})}
	p.cmd.Stderr = output
	if p.cmd.Stdout == nil {
		p.cmd.Stdout = output
	}
	// Nothing outlives a test that is itself killed.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("cannot start %s: %v", cmd.Path, err)
	}
	go func() {
		_ = p.cmd.Wait() // The state is read from ProcessState.
		close(p.exited)
	}()
	t.Cleanup(func() {
		// Asked first: what runs a container in the registrar's place must end it.
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		if _, err := p.AwaitExit(stopLimit); err != nil {
			_ = p.cmd.Process.Kill()
			<-p.exited
		}
		if t.Failed() {
			t.Logf("output of %s:\n%s", filepath.Base(cmd.Path), p.Output())
		}
	})
	return p
}

// Exited is closed once the process has ended and was reaped.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Terminate sends SIGTERM.
func (p *Process) Terminate(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
}

// Freeze makes it hang, with its sockets open, and returns once every thread has stopped.
func (p *Process) Freeze(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	for limit := time.Now().Add(freezeLimit); !p.frozen(t); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%s still runs %s after it was stopped", p.cmd.Path, freezeLimit)
		}
	}
}

func (p *Process) frozen(t *testing.T) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.cmd.Process.Pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("no threads of %s: %v", p.cmd.Path, err)
	}
	for _, thread := range threads {
		// One that ended meanwhile runs no more.
		if status, err := os.ReadFile(thread); err == nil && !strings.Contains(string(status), "State:\tT") {
			return false
		}
	}
	return true
}

// Thaw lets it go on.
func (p *Process) Thaw(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGCONT)
}

func (p *Process) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		t.Fatalf("cannot send %s to %s: %v", signal, p.cmd.Path, err)
	}
}

// Kill sends SIGKILL and returns when the process has ended.
func (p *Process) Kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatalf("cannot kill %s: %v", p.cmd.Path, err)
	}
	<-p.exited
}

// AwaitExit returns the exit code; an end by a signal and no end within the limit are errors.
func (p *Process) AwaitExit(limit time.Duration) (int, error) {
	select {
	case <-p.exited:
	case <-time.After(limit):
		return 0, fmt.Errorf("%s still runs after %s", filepath.Base(p.cmd.Path), limit)
	}
	if !p.cmd.ProcessState.Exited() {
		return 0, fmt.Errorf("%s ended by %s", filepath.Base(p.cmd.Path), p.cmd.ProcessState)
	}
	return p.cmd.ProcessState.ExitCode(), nil
}

// Output is what the process has written so far, its last 16 KiB.
func (p *Process) Output() string {
	output, err := os.ReadFile(p.logPath)
	if err != nil {
		return err.Error()
	}
	return string(output[max(0, len(output)-logTail):])
}
