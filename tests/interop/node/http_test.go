package node

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// requestLimit bounds a request to the registrar, as the probes do.
const requestLimit = 3 * time.Second

// get asks the registrar's HTTP server.
func (d *driver) get(t *testing.T, path string) (int, string) {
	t.Helper()
	code, body, err := request(d.pod(t), path)
	if err != nil {
		t.Fatal(err)
	}
	return code, body
}

func request(pod *corev1.Pod, path string) (int, string, error) {
	client := http.Client{Timeout: requestLimit}
	response, err := client.Get("http://" + net.JoinHostPort(pod.Status.PodIP, "9809") + path)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, strings.TrimSpace(string(body)), err
}

// metric is the value of the first series whose name and labels begin so.
func (d *driver) metric(t *testing.T, series string) string {
	t.Helper()
	_, body := d.get(t, "/metrics")
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, series) {
			fields := strings.Fields(line)
			return fields[len(fields)-1]
		}
	}
	return ""
}

// awaitPublications counts the sockets that the registrar's process has published; the kubelet has confirmed the last one.
func (d *driver) awaitPublications(t *testing.T, want string) {
	t.Helper()
	d.c.world.await(t, readyLimit, "publication "+want+" is confirmed", func() string {
		if got := d.metric(t, "csi_registrar_publications_total"); got != want {
			return got + " publications"
		}
		if code, body := d.get(t, "/readyz"); code != http.StatusOK {
			return body
		}
		return ""
	})
}

func (d *driver) wantGet(t *testing.T, path string, wantCode int, part string) {
	t.Helper()
	if code, body := d.get(t, path); code != wantCode || !strings.Contains(body, part) {
		t.Errorf("%s: %d %s, want %d with %q", path, code, body, wantCode, part)
	}
}
