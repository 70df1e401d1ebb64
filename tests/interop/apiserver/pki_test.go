package apiserver

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
)

// lifetime of every certificate: the tests', and an hour for clocks that differ.
const lifetime = 2 * time.Hour

// pki is a throwaway authority for the API server and all its clients.
type pki struct {
	ca    *x509.Certificate
	caKey *ecdsa.PrivateKey

	caFile                        string
	serverCertFile, serverKeyFile string
}

func newPKI(t *testing.T, dir string) *pki {
	t.Helper()
	p := &pki{
		caFile:         filepath.Join(dir, "ca.crt"),
		serverCertFile: filepath.Join(dir, "server.crt"),
		serverKeyFile:  filepath.Join(dir, "server.key"),
	}
	p.caKey = newKey(t)
	template := certificate(pkix.Name{CommonName: "throwaway"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, p.caKey.Public(), p.caKey)
	if err != nil {
		t.Fatal(err)
	}
	if p.ca, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	write(t, p.caFile, encode("CERTIFICATE", der))

	server := certificate(pkix.Name{CommonName: "kube-apiserver"})
	server.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	cert, key := p.issue(t, server)
	write(t, p.serverCertFile, cert)
	write(t, p.serverKeyFile, key)
	return p
}

// client is an identity as the API server knows them: user and group.
func (p *pki) client(t *testing.T, user, group string) (cert, key []byte) {
	t.Helper()
	template := certificate(pkix.Name{CommonName: user, Organization: []string{group}})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return p.issue(t, template)
}

func (p *pki) issue(t *testing.T, template *x509.Certificate) (cert, key []byte) {
	t.Helper()
	private := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, template, p.ca, private.Public(), p.caKey)
	if err != nil {
		t.Fatal(err)
	}
	// Not PKCS #8, in which kube-apiserver reads no key of service accounts.
	sec1, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return encode("CERTIFICATE", der), encode("EC PRIVATE KEY", sec1)
}

func certificate(subject pkix.Name) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      subject,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
