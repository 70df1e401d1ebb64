package registration

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// The kubelet's own limits (pkg/kubelet/pluginmanager/operationexecutor and pkg/volume/csi, v1.37.2).
const (
	dialLimit        = 10 * time.Second
	getInfoLimit     = 1 * time.Second
	notifyLimit      = 5 * time.Second
	nodeGetInfoLimit = 2 * time.Minute
)

// authority is what a client puts into :authority when it calls over the registration socket.
type authority string

const (
	// percentEncoded is the kubelet's since 1.29: no override, grpc-go encodes the path that it was told to dial.
	percentEncoded authority = "percent-encoded"
	// rawPath is the kubelet's up to 1.28: no override either, and grpc-go did not encode yet.
	rawPath authority = "raw"
	// localhost is what well-behaved clients send; a test with this form alone proves nothing about a node.
	localhost authority = "localhost"
)

var authorities = []authority{percentEncoded, rawPath, localhost}

func (a authority) options(path string) []grpc.DialOption {
	switch a {
	case percentEncoded:
		return nil
	case rawPath:
		return []grpc.DialOption{grpc.WithAuthority(path)}
	default:
		return []grpc.DialOption{grpc.WithAuthority(string(a))}
	}
}

// operation is one registration as the kubelet runs it: a channel of its own to the socket, for both calls.
type operation struct {
	client registerapi.RegistrationClient
	conn   *grpc.ClientConn
	dials  *atomic.Int32
}

// dial blocks until the HTTP/2 connection is up, as the kubelet does.
func dial(path string, form authority) (*operation, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	dials := new(atomic.Int32)
	options := append(form.options(path),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithBlock(),
		grpc.WithContextDialer(func(ctx context.Context, target string) (net.Conn, error) {
			dials.Add(1)
			var dialer net.Dialer
			return dialer.DialContext(ctx, "unix", target)
		}))
	// Deprecated, and what the kubelet calls: NewClient would resolve the target otherwise and cannot block.
	conn, err := grpc.DialContext(ctx, path, options...)
	if err != nil {
		return nil, fmt.Errorf("no connection to %s within %s: %w", path, dialLimit, err)
	}
	return &operation{client: registerapi.NewRegistrationClient(conn), conn: conn, dials: dials}, nil
}

func (o *operation) close() { _ = o.conn.Close() }

func (o *operation) getInfo() (*registerapi.PluginInfo, error) {
	ctx, cancel := context.WithTimeout(context.Background(), getInfoLimit)
	defer cancel()
	return o.client.GetInfo(ctx, &registerapi.InfoRequest{})
}

func (o *operation) notify(registered bool, reason string) error {
	ctx, cancel := context.WithTimeout(context.Background(), notifyLimit)
	defer cancel()
	_, err := o.client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: registered, Error: reason})
	return err
}

// hold leaves the connection idle for that long, as the kubelet does while it waits for the driver; the loss of the
// connection ends it at once.
func (o *operation) hold(duration time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), duration)
	defer cancel()
	begin := time.Now()
	if o.conn.WaitForStateChange(ctx, connectivity.Ready) {
		return fmt.Errorf("connection lost (%s) after %s of %s", o.conn.GetState(), time.Since(begin), duration)
	}
	return nil
}

// sameConnection fails when grpc-go had to dial again, which it does without a word.
func (o *operation) sameConnection() error {
	if dials := o.dials.Load(); dials != 1 {
		return fmt.Errorf("%d connections were made, want all calls on one", dials)
	}
	return nil
}

// nodeGetInfo asks the driver behind the endpoint that the registrar told, as the kubelet does between the two calls.
func nodeGetInfo(endpoint string) (*csi.NodeGetInfoResponse, error) {
	conn, err := grpc.NewClient("unix:"+endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(string(localhost)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), nodeGetInfoLimit)
	defer cancel()
	return csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
}
