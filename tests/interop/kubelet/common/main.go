// Package common is a kubelet reduced to its plugin manager and CSI handler, less what differs between Kubernetes releases:
// the events, the API server, the commands. Each release's program is an adapter of some lines around it.
package common

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"syscall"

	"k8s.io/component-base/metrics/legacyregistry"

	"interop/kubelet/common/protocol"
)

// Release is what a Kubernetes release does in its own way.
type Release struct {
	Version string
	// CaptureLog makes klog write its records of LogVerbosity to the writer and nowhere else.
	CaptureLog func(io.Writer)
	// ObserveMessages makes gRPC tell every message that it encodes or decodes.
	ObserveMessages func(func(message interface{}))
	// InitCSI is the CSI volume plugin's Init.
	InitCSI func(*Host) error
	// RunPluginManager watches the directory with the CSI handler until stop is closed.
	RunPluginManager func(dir string, events *Events, stop <-chan struct{})
}

// Main is the whole program.
func Main(release Release) {
	dir := flag.String("dir", "", "plugin registration directory to watch")
	objectsPath := flag.String("objects", "", "file with the API server's Node and CSINode: read if it exists, written at every change")
	flag.Parse()
	if *dir == "" || *objectsPath == "" {
		fmt.Fprintln(os.Stderr, "-dir and -objects are required")
		os.Exit(2)
	}
	if err := run(release, *dir, *objectsPath); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(release Release, dir, objectsPath string) error {
	events := &Events{out: os.Stdout}
	events.Write(protocol.KubeletEvent{Event: protocol.Started, Version: release.Version})
	release.CaptureLog(Log{events})
	release.ObserveMessages(events.Message)

	server, err := OpenAPIServer(objectsPath, events)
	if err != nil {
		return err
	}
	host := NewHost(server, events)
	if err := release.InitCSI(host); err != nil {
		return fmt.Errorf("the CSI plugin does not start: %w", err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	host.Informers.Start(stop)
	<-host.Ready()
	go func() {
		release.RunPluginManager(dir, events, stop)
		close(stopped)
	}()

	if err := obey(os.Stdin, server, events); err != nil {
		return err
	}
	close(stop)
	<-stopped
	events.Write(protocol.KubeletEvent{Event: protocol.Stopped})
	return nil
}

// obey returns when it is told to stop.
func obey(input io.Reader, server *APIServer, events *Events) error {
	for {
		line, err := readLine(input)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read commands: %w", err)
		}
		var command protocol.KubeletCommand
		if err := json.Unmarshal(line, &command); err != nil {
			events.Write(protocol.KubeletEvent{Event: protocol.CommandFailed, Text: err.Error()})
			continue
		}
		switch command.Command {
		case protocol.StopKubelet:
			return nil
		case protocol.RestartKubelet:
			// The handler's map of drivers is global: only a new process image is without it.
			return fmt.Errorf("cannot restart: %w", syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
		case protocol.TakeSnapshot:
			if err := snapshot(server, events); err != nil {
				return err
			}
		default:
			events.Write(protocol.KubeletEvent{Event: protocol.CommandFailed, Text: fmt.Sprintf("no command %q", command.Command)})
		}
	}
}

// readLine reads no further than the line, so that a restart loses no command.
func readLine(input io.Reader) ([]byte, error) {
	var line []byte
	for {
		var next [1]byte
		if _, err := io.ReadFull(input, next[:]); err != nil {
			return nil, err
		}
		if next[0] == '\n' {
			return line, nil
		}
		line = append(line, next[0])
	}
}

// snapshot reads the two states of world where the kubelet shows them: in its metrics.
func snapshot(server *APIServer, events *Events) error {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return fmt.Errorf("cannot gather metrics: %w", err)
	}
	states := map[string][]string{}
	for _, family := range families {
		if family.GetName() != "plugin_manager_total_plugins" {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, pair := range metric.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			states[labels["state"]] = append(states[labels["state"]], labels["socket_path"])
		}
	}
	for _, sockets := range states {
		sort.Strings(sockets)
	}
	server.lock.Lock()
	current := server.objects()
	server.lock.Unlock()
	events.Write(protocol.KubeletEvent{
		Event:   protocol.Snapshot,
		Desired: states["desired_state_of_world"],
		Actual:  states["actual_state_of_world"],
		Node:    current.Node,
		CSINode: current.CSINode,
	})
	return nil
}
