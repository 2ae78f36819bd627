package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user owns the home directory and is who the image runs as. 65532 is what distroless images and the operator use.
const user = 65532

const (
	home         = "home/nonroot"
	program      = "etcd-wrapper"
	certificates = "etc/ssl/certs/ca-certificates.crt" // the first place where Go looks for them
)

// baseLayer holds what every version of the program needs: certificates to know an object store by, and a home directory
// for the copy of etcd's configuration that is kept there.
func baseLayer() (v1.Layer, error) {
	roots, err := trusted()
	if err != nil {
		return nil, err
	}
	return layer(func(w *tar.Writer) error {
		for _, dir := range []string{"etc", "etc/ssl", "etc/ssl/certs", "home"} {
			if err := entry(w, tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}, nil); err != nil {
				return err
			}
		}
		if err := entry(w, tar.Header{Name: certificates, Mode: 0o644}, roots); err != nil {
			return err
		}
		return entry(w, tar.Header{Typeflag: tar.TypeDir, Name: home + "/", Mode: 0o700, Uid: user, Gid: user}, nil)
	})
}

func programLayer(binary string) (v1.Layer, error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	return layer(func(w *tar.Writer) error { return entry(w, tar.Header{Name: program, Mode: 0o755}, content) })
}

// trusted are the roots of Mozilla's programme as the Go project publishes them. They come with the module, so that the
// image does not depend on the machine that builds it. Roots with a constraint are left out: a file of certificates can't
// express it, and Mozilla is about to drop those.
func trusted() ([]byte, error) {
	var roots bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		parsed, err := x509.ParseCertificate(root.Certificate)
		if err != nil {
			return nil, fmt.Errorf("cannot read a root certificate: %w", err)
		}
		fmt.Fprintf(&roots, "# %s\n", parsed.Subject)
		if err := pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return roots.Bytes(), nil
}

// layer compresses what fill puts into an archive. No entry has a time: equal content gives an equal digest.
func layer(fill func(w *tar.Writer) error) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := fill(w); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

func entry(w *tar.Writer, header tar.Header, content []byte) error {
	header.Size, header.Format = int64(len(content)), tar.FormatUSTAR
	if header.Typeflag == 0 {
		header.Typeflag = tar.TypeReg
	}
	if err := w.WriteHeader(&header); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}
