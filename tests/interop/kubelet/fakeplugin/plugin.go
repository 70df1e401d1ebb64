package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"interop/kubelet/common/protocol"
)

// plugin is the sockets and the settings; each socket has a server of its own each time that it is bound.
type plugin struct {
	registrationPath string
	driverPath       string
	calls            *calls

	// registrations are all whose file was made; after unlinking, the older ones still serve.
	registrations []*grpc.Server
	driver        *grpc.Server
}

func newPlugin(registrationPath, driverPath string, events *events) *plugin {
	return &plugin{
		registrationPath: registrationPath,
		driverPath:       driverPath,
		calls:            &calls{events: events, settings: withDefaults(protocol.PluginSettings{}, driverPath)},
	}
}

func withDefaults(settings protocol.PluginSettings, driverPath string) protocol.PluginSettings {
	if settings.Type == "" {
		settings.Type = registerapi.CSIPlugin
	}
	if settings.Endpoint == nil {
		settings.Endpoint = &driverPath
	}
	if settings.Versions == nil {
		settings.Versions = []string{"1.0.0"}
	}
	return settings
}

func (p *plugin) obey(command protocol.PluginCommand) error {
	switch command.Command {
	case protocol.Configure:
		if command.Settings == nil {
			return errors.New("no settings")
		}
		p.calls.configure(withDefaults(*command.Settings, p.driverPath))
		return nil
	case protocol.Publish:
		return p.publish(p.registrationPath)
	case protocol.PublishByRename:
		hidden := filepath.Join(filepath.Dir(p.registrationPath), "."+filepath.Base(p.registrationPath))
		if err := p.publish(hidden); err != nil {
			return err
		}
		return os.Rename(hidden, p.registrationPath)
	case protocol.Unlink:
		return os.Remove(p.registrationPath)
	case protocol.Close:
		for _, server := range p.registrations {
			server.Stop()
		}
		p.registrations = nil
		return nil
	case protocol.ServeCSI:
		return p.serveCSI()
	case protocol.CloseCSI:
		if p.driver == nil {
			return errors.New("the driver's socket is not served")
		}
		p.driver.Stop()
		p.driver = nil
		return nil
	default:
		return fmt.Errorf("no command %q", command.Command)
	}
}

func (p *plugin) publish(path string) error {
	listener, err := listen(path)
	if err != nil {
		return err
	}
	server := p.calls.newServer()
	registerapi.RegisterRegistrationServer(server, registration{calls: p.calls})
	p.registrations = append(p.registrations, server)
	go func() { _ = server.Serve(hesitant{listener, p.calls, protocol.Connect}) }() // It ends with Close.
	return nil
}

// hesitant lets each connection wait before it is served.
type hesitant struct {
	net.Listener
	calls *calls
	// delay is its name in the settings.
	delay string
}

func (h hesitant) Accept() (net.Conn, error) {
	connection, err := h.Listener.Accept()
	if err == nil {
		time.Sleep(time.Duration(h.calls.current().DelaysMS[h.delay]) * time.Millisecond)
	}
	return connection, err
}

func (p *plugin) serveCSI() error {
	if p.driver != nil {
		return errors.New("the driver's socket is served already")
	}
	if err := os.Remove(p.driverPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := listen(p.driverPath)
	if err != nil {
		return err
	}
	p.driver = p.calls.newServer()
	csi.RegisterIdentityServer(p.driver, identity{calls: p.calls})
	csi.RegisterNodeServer(p.driver, node{calls: p.calls})
	server := p.driver
	go func() { _ = server.Serve(hesitant{listener, p.calls, protocol.ConnectDriver}) }() // It ends with CloseCSI.
	return nil
}

// listen leaves the file alone when it closes: files come and go by command only.
func listen(path string) (net.Listener, error) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	return listener, nil
}

// calls is what all servers have in common: the settings, and that everything is told.
type calls struct {
	events *events

	lock        sync.Mutex
	settings    protocol.PluginSettings
	connections int
}

func (c *calls) configure(settings protocol.PluginSettings) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.settings = settings
}

func (c *calls) current() protocol.PluginSettings {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.settings
}

// fault is the one that befalls this call of the method, with the delay of all its calls.
func (c *calls) fault(method string) protocol.Fault {
	c.lock.Lock()
	defer c.lock.Unlock()
	fault := c.nextFault(method)
	fault.DelayMS += c.settings.DelaysMS[method]
	return fault
}

func (c *calls) nextFault(method string) protocol.Fault {
	fault := c.settings.Faults[method]
	switch fault.Times {
	case 0:
	case 1:
		delete(c.settings.Faults, method)
	default:
		left := fault
		left.Times--
		c.settings.Faults[method] = left
	}
	return fault
}
