// Package authority issues the throwaway certificates of a cluster under test. It stands apart from the harness, whose other
// users need no Kubernetes client.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// validity outlives any run.
const validity = 24 * time.Hour

// Authority signs every certificate of the cluster, and keeps them all in one directory.
type Authority struct {
	directory   string
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	serial      atomic.Int64
}

// New writes ca.crt and ca.key.
func New(t *testing.T, directory string) *Authority {
	t.Helper()
	a := &Authority{directory: directory}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "throwaway"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key, a.certificate = a.issue(t, "ca", template)
	return a
}

// Path is that of one of its files.
func (a *Authority) Path(name string) string { return filepath.Join(a.directory, name) }

// IssueServer writes NAME.crt and NAME.key, for a server on the loopback network.
func (a *Authority) IssueServer(t *testing.T, name string) {
	t.Helper()
	a.issue(t, name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	})
}

// IssueClient writes NAME.crt, NAME.key and NAME.kubeconfig for the API server at the address, and returns the last one's path.
// User and groups are what RBAC's and the Node authorizer's rules are about.
func (a *Authority) IssueClient(t *testing.T, name, address, user string, groups ...string) string {
	t.Helper()
	a.issue(t, name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	config := api.NewConfig()
	config.Clusters["test"] = &api.Cluster{Server: address, CertificateAuthority: a.Path("ca.crt")}
	config.AuthInfos[name] = &api.AuthInfo{ClientCertificate: a.Path(name + ".crt"), ClientKey: a.Path(name + ".key")}
	config.Contexts[name] = &api.Context{Cluster: "test", AuthInfo: name}
	config.CurrentContext = name
	kubeconfig := a.Path(name + ".kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// issue writes NAME.crt and NAME.key; the first one that it issues signs itself.
func (a *Authority) issue(t *testing.T, name string, template *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(a.serial.Add(1))
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(validity)
	parent, signer := a.certificate, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	// Not PKCS #8, in which kube-apiserver reads no key of service accounts.
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, name+".crt", "CERTIFICATE", der)
	a.write(t, name+".key", "EC PRIVATE KEY", private)
	return key, certificate
}

func (a *Authority) write(t *testing.T, name, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(a.Path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
