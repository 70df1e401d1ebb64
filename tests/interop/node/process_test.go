package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Processes of the node are asked for their end by SIGKILL alone: that is what the scenarios are about, and the last of them
// dies with the process namespace.

// process is one that the tests started.
type process struct {
	cmd *exec.Cmd
	// done is closed once it has ended and was reaped.
	done chan struct{}
}

// launch appends what the process writes to a log that the run keeps if it fails.
func launch(logs, name, bin string, args ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(logs, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{cmd: exec.Command(bin, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // Its end is an event, its state is nobody's concern.
		close(p.done)
	}()
	return p, nil
}

func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatalf("cannot kill %s: %v", p.cmd.Path, err)
	}
	<-p.done
}

// processes are all of this process namespace.
func processes(t *testing.T) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// signalContainer finds the processes by their control group, whose path ends in the container's id.
func signalContainer(t *testing.T, id string, signal syscall.Signal) {
	t.Helper()
	pid := containerProcess(t, id)
	if err := syscall.Kill(pid, signal); err != nil {
		t.Fatalf("cannot send %s to process %d of container %s: %v", signal, pid, id, err)
	}
}

// containerProcess is the one process of a container, as seen from here.
func containerProcess(t *testing.T, id string) int {
	t.Helper()
	for _, pid := range processes(t) {
		groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err == nil && strings.Contains(string(groups), id) {
			return pid
		}
	}
	t.Fatalf("container %s has no process", id)
	return 0
}

// killEverything spares the init of the namespace and the tests.
func killEverything(t *testing.T) {
	t.Helper()
	limit := time.Now().Add(startLimit)
	for {
		left := 0
		for _, pid := range processes(t) {
			if pid == 1 || pid == os.Getpid() || pid == os.Getppid() {
				continue
			}
			left++
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Fatalf("cannot kill process %d: %v", pid, err)
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%d processes are left %s after they were killed", left, startLimit)
		}
		time.Sleep(poll)
	}
}
