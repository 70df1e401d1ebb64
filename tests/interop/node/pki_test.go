package node

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
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// validity outlives any run.
const validity = 24 * time.Hour

// authority signs every certificate of the cluster.
type authority struct {
	directory   string
	key         *ecdsa.PrivateKey
	certificate *x509.Certificate
	serial      int64
}

func newAuthority(t *testing.T, directory string) *authority {
	t.Helper()
	a := &authority{directory: directory}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "node-test"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key, a.certificate = a.issue(t, "ca", template)
	return a
}

// issue writes NAME.crt and NAME.key; the first one that it issues signs itself.
func (a *authority) issue(t *testing.T, name string, template *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a.serial++
	template.SerialNumber = big.NewInt(a.serial)
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
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	a.write(t, name+".crt", "CERTIFICATE", der)
	a.write(t, name+".key", "EC PRIVATE KEY", private)
	return key, certificate
}

func (a *authority) write(t *testing.T, name, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(a.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (a *authority) path(name string) string { return filepath.Join(a.directory, name) }

func (a *authority) issueServer(t *testing.T, name string) {
	t.Helper()
	a.issue(t, name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.ParseIP(loopback)},
	})
}

// issueClient also writes NAME.kubeconfig. The user is what RBAC's and the Node authorizer's rules are about.
func (a *authority) issueClient(t *testing.T, name, user string, groups ...string) {
	t.Helper()
	a.issue(t, name, &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	config := api.NewConfig()
	config.Clusters["node-test"] = &api.Cluster{Server: apiServer, CertificateAuthority: a.path("ca.crt")}
	config.AuthInfos[name] = &api.AuthInfo{ClientCertificate: a.path(name + ".crt"), ClientKey: a.path(name + ".key")}
	config.Contexts[name] = &api.Context{Cluster: "node-test", AuthInfo: name}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, a.path(name+".kubeconfig")); err != nil {
		t.Fatal(err)
	}
}
