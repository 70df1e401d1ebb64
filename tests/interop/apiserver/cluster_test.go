// Package apiserver holds our plugin manager against a real API server: kube-apiserver on etcd, with the node authorizer and
// NodeRestriction, so that the manager has a node's rights and no more. What is written is read back with client-go's types.
package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"interop/harness"
	"interop/harness/authority"
)

var (
	etcdBin       = flag.String("etcd", "", "path of etcd's binary")
	apiServerBin  = flag.String("kube-apiserver", "", "path of kube-apiserver's binary")
	managerBin    = flag.String("manager", "", "path of our kubelet-plugin-manager, built with its feature kube")
	kubeletBin    = flag.String("kubelet", "", "path of the kubelet's plugin manager, ./kubelet here")
	rulesPage     = flag.String("rules", "", "path of the page that names the rights, docs/plugin-manager.md")
	fakePluginBin = flag.String("fakeplugin", "", "path of the fake plugin's binary")
)

// patience bounds every wait: starts, and what a kubelet does within a second on a busy machine.
const patience = time.Minute

// poll is the distance between two looks at what gives no event.
const poll = 20 * time.Millisecond

// auditPolicy: who asked for what, and which code came back.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// cluster is an API server with its store.
type cluster struct {
	dir     string
	address string
	ca      *authority.Authority
	audit   string
	admin   kubernetes.Interface

	arguments []string
	server    *harness.Process
}

// startCluster returns when the API server is ready; all of it ends with the test.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	dir := t.TempDir()
	ca := authority.New(t, dir)
	ca.IssueServer(t, "kube-apiserver")
	ports := freePorts(t, 3)
	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	harness.Start(t, dir, *etcdBin, "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)

	policy := filepath.Join(dir, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &cluster{
		dir:     dir,
		address: fmt.Sprintf("https://127.0.0.1:%d", ports[2]),
		ca:      ca,
		audit:   filepath.Join(dir, "audit.log"),
	}
	c.arguments = []string{
		"--etcd-servers=" + etcd,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[2]),
		"--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24",
		"--client-ca-file=" + ca.Path("ca.crt"),
		"--tls-cert-file=" + ca.Path("kube-apiserver.crt"), "--tls-private-key-file=" + ca.Path("kube-apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + ca.Path("kube-apiserver.key"), "--service-account-signing-key-file=" + ca.Path("kube-apiserver.key"),
		"--authorization-mode=Node,RBAC",
		// No controller makes the service accounts that pods would need; there are no pods.
		"--enable-admission-plugins=NodeRestriction", "--disable-admission-plugins=ServiceAccount",
		"--audit-policy-file=" + policy, "--audit-log-path=" + c.audit,
	}
	c.admin = kubernetes.NewForConfigOrDie(c.config(t, "admin", "system:masters"))
	c.startServer(t)
	return c
}

// startServer starts the API server, for the first time or again.
func (c *cluster) startServer(t *testing.T) {
	t.Helper()
	begin := time.Now()
	c.server = harness.Start(t, c.dir, *apiServerBin, c.arguments...)
	await(t, "a ready API server", func(ctx context.Context) bool {
		select {
		case <-c.server.Exited():
			t.Fatalf("kube-apiserver ended: %s", c.server.Output())
		default:
		}
		return c.admin.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil
	})
	t.Logf("kube-apiserver is ready after %s", time.Since(begin).Round(time.Millisecond))
}

// config is a client's with a certificate for this identity.
func (c *cluster) config(t *testing.T, user, group string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", c.ca.IssueClient(t, user, c.address, user, group))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return config
}

// request is what the audit log keeps of one.
type request struct {
	Verb      string `json:"verb"`
	UserAgent string `json:"userAgent"`
	Stage     string `json:"stage"`
	User      struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

func (r request) String() string {
	resource := r.ObjectRef.Resource
	if r.ObjectRef.Subresource != "" {
		resource += "/" + r.ObjectRef.Subresource
	}
	return fmt.Sprintf("%s %s %d", r.Verb, resource, r.ResponseStatus.Code)
}

// requests are all that a user has made so far, in their order.
func (c *cluster) requests(t *testing.T, user string) []request {
	t.Helper()
	log, err := os.ReadFile(c.audit)
	if err != nil {
		t.Fatal(err)
	}
	var all []request
	lines := bufio.NewScanner(bytes.NewReader(log))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("audit log: %v", err)
		}
		// A watch has another line at its end.
		if r.User.Username == user && (r.Verb != "watch" || r.Stage == "ResponseStarted") {
			all = append(all, r)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatalf("audit log: %v", err)
	}
	return all
}

// await looks again and again until it is so.
func await(t *testing.T, what string, so func(ctx context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for !so(ctx) {
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// freePorts were free a moment ago; all differ.
func freePorts(t *testing.T, count int) []int {
	t.Helper()
	var ports []int
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports
}
