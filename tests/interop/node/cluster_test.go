package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"interop/harness/authority"
)

var (
	binaries   = flag.String("binaries", "", "directory of etcd, the Kubernetes programs and kubectl")
	images     = flag.String("images", "", "directory of the images' archives")
	folder     = flag.String("folder", "", "directory for credentials and etcd's data")
	logs       = flag.String("logs", "", "directory for the programs' logs")
	settings   = flag.String("settings", "", "directory with the kubelet's and containerd's configuration and the overlays")
	cgroupRoot = flag.String("cgroup-root", "", "control group of all pods")
)

const (
	loopback  = "127.0.0.1"
	apiServer = "https://127.0.0.1:6443"
	nodeName  = "node-1"
	// nodeAddress is the bridge's in network.conflist: the kubelet takes none of loopback.
	nodeAddress = "10.244.0.1"
	// runtimeDir is wiped by a power cut.
	runtimeDir = "/run"

	// startLimit bounds a program's start; all of them at once on two busy cores take most of it.
	startLimit = 2 * time.Minute
	// poll is the beat of what has no event to wait for.
	poll = 20 * time.Millisecond
)

// cluster is a control plane and one node.
type cluster struct {
	client  kubernetes.Interface
	world   *world
	running map[string]*process
	// arguments of each program by its name.
	arguments map[string][]string
}

// startCluster returns once the node is ready.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	for name, value := range map[string]string{
		"binaries": *binaries, "images": *images, "folder": *folder, "logs": *logs, "settings": *settings, "cgroup-root": *cgroupRoot,
	} {
		if value == "" {
			t.Fatalf("-%s is not given; tests/node/run makes what these tests need, and starts them", name)
		}
	}
	ca := authority.New(t, *folder)
	ca.IssueServer(t, "kube-apiserver")
	ca.IssueClient(t, "admin", apiServer, "admin", "system:masters")
	ca.IssueClient(t, "kube-apiserver-client", apiServer, "kube-apiserver", "system:masters")
	ca.IssueClient(t, "kube-controller-manager", apiServer, "system:kube-controller-manager")
	ca.IssueClient(t, "kube-scheduler", apiServer, "system:kube-scheduler")
	ca.IssueClient(t, "kubelet", apiServer, "system:node:"+nodeName, "system:nodes")
	ca.IssueServer(t, "service-account")
	configure(t, "kubelet.yaml", "clientCAFile: ca.crt", "clientCAFile: "+ca.Path("ca.crt"))
	configure(t, "containerd.toml")
	configure(t, "network.conflist")

	config, err := clientcmd.BuildConfigFromFlags("", ca.Path("admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS, config.Burst = -1, -1 // All scenarios share this client.
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{client: client, running: map[string]*process{}, arguments: programs(ca)}
	c.startAll(t)
	return c
}

// configure copies a file of the settings into the folder, with replacements in pairs.
func configure(t *testing.T, name string, replacements ...string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(*settings, name))
	if err != nil {
		t.Fatal(err)
	}
	replaced := strings.NewReplacer(replacements...).Replace(string(text))
	if err := os.WriteFile(filepath.Join(*folder, name), []byte(replaced), 0o600); err != nil {
		t.Fatal(err)
	}
}

func programs(ca *authority.Authority) map[string][]string {
	kubeconfig := func(name string) string { return "--kubeconfig=" + ca.Path(name+".kubeconfig") }
	return map[string][]string{
		"etcd": {
			"--data-dir=" + ca.Path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
			"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
			"--listen-peer-urls=http://127.0.0.1:2380",
		},
		"kube-apiserver": {
			"--etcd-servers=http://127.0.0.1:2379", "--bind-address=" + loopback, "--advertise-address=" + nodeAddress,
			"--endpoint-reconciler-type=none", "--kubelet-preferred-address-types=InternalIP", "--service-cluster-ip-range=10.96.0.0/24",
			"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged",
			"--client-ca-file=" + ca.Path("ca.crt"),
			"--tls-cert-file=" + ca.Path("kube-apiserver.crt"), "--tls-private-key-file=" + ca.Path("kube-apiserver.key"),
			"--kubelet-client-certificate=" + ca.Path("kube-apiserver-client.crt"),
			"--kubelet-client-key=" + ca.Path("kube-apiserver-client.key"),
			"--service-account-issuer=" + apiServer,
			"--service-account-key-file=" + ca.Path("service-account.key"),
			"--service-account-signing-key-file=" + ca.Path("service-account.key"),
		},
		"kube-controller-manager": {
			kubeconfig("kube-controller-manager"), "--bind-address=" + loopback, "--leader-elect=false",
			"--use-service-account-credentials", "--service-account-private-key-file=" + ca.Path("service-account.key"),
			"--root-ca-file=" + ca.Path("ca.crt"),
		},
		"kube-scheduler": {kubeconfig("kube-scheduler"), "--bind-address=" + loopback, "--leader-elect=false"},
		"containerd":     {"--config=" + ca.Path("containerd.toml")},
		"kubelet": {
			kubeconfig("kubelet"), "--config=" + ca.Path("kubelet.yaml"), "--hostname-override=" + nodeName,
			"--node-ip=" + nodeAddress, "--cgroup-root=" + *cgroupRoot, "--v=2",
		},
	}
}

// startAll is for a machine that is down.
func (c *cluster) startAll(t *testing.T) {
	t.Helper()
	network := filepath.Join(runtimeDir, "node-test", "cni")
	if err := os.MkdirAll(network, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(*folder, "network.conflist"), filepath.Join(network, "network.conflist")); err != nil {
		t.Fatal(err)
	}
	c.start(t, "etcd")
	c.start(t, "containerd")
	c.start(t, "kube-apiserver")
	awaitReady(t, "containerd", func(ctx context.Context) error {
		connection, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(runtimeDir, "containerd", "containerd.sock"))
		if err == nil {
			connection.Close()
		}
		return err
	})
	importImages(t)
	awaitReady(t, "kube-apiserver", func(ctx context.Context) error {
		return c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
	c.world = watchWorld(t, c.client)
	c.start(t, "kube-controller-manager")
	c.start(t, "kube-scheduler")
	c.start(t, "kubelet")
	c.world.await(t, startLimit, "the node is ready", c.world.nodeReady)
}

func (c *cluster) start(t *testing.T, name string) {
	t.Helper()
	bin := filepath.Join(*binaries, name)
	if _, err := os.Stat(bin); errors.Is(err, fs.ErrNotExist) {
		bin = name // The machine's.
	}
	p, err := launch(*logs, name, bin, c.arguments[name]...)
	if err != nil {
		t.Fatalf("cannot start %s: %v", name, err)
	}
	c.running[name] = p
}

func (c *cluster) kill(t *testing.T, name string) {
	t.Helper()
	c.running[name].kill(t)
}

func awaitReady(t *testing.T, name string, ask func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("%s is not ready within %s: %v; see its log in %s", name, startLimit, err, *logs)
		}
		time.Sleep(poll)
	}
}

func importImages(t *testing.T) {
	t.Helper()
	archives, err := filepath.Glob(filepath.Join(*images, "*.tar"))
	if err != nil || len(archives) == 0 {
		t.Fatalf("no images in %s: %v", *images, err)
	}
	for _, archive := range archives {
		output, err := exec.Command("ctr", "--namespace", "k8s.io", "images", "import", "--snapshotter", "native", archive).CombinedOutput()
		if err != nil {
			t.Fatalf("cannot import %s: %v\n%s", archive, err, output)
		}
	}
}

// cutPower leaves what a disk keeps. Mounts and what is in memory are gone, and every process.
func cutPower(t *testing.T) {
	t.Helper()
	killEverything(t)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(mounts)), "\n")
	for i := len(lines) - 1; i >= 0; i-- { // The latest first.
		point := strings.Fields(lines[i])[4]
		for _, above := range []string{runtimeDir + "/", "/var/lib/"} {
			if strings.HasPrefix(point, above) {
				if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
					t.Fatalf("cannot unmount %s: %v", point, err)
				}
			}
		}
	}
	entries, err := os.ReadDir(runtimeDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(runtimeDir, entry.Name())); err != nil {
			t.Fatal(err)
		}
	}
}

// kubectl is run as the cluster's administrator.
func (c *cluster) kubectl(t *testing.T, input string, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(*binaries, "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(*folder, "admin.kubeconfig"), "HOME="+*folder)
	cmd.Stdin = strings.NewReader(input)
	var problems strings.Builder
	cmd.Stderr = &problems
	output, err := cmd.Output()
	if err != nil {
		t.Fatal(fmt.Errorf("kubectl %s: %w\n%s", strings.Join(args, " "), err, problems.String()))
	}
	return string(output)
}
