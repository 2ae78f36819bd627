package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// names are what a layout calls its image: within the folder, and where it is loaded into, which is the name that the chart
// has. The bills of materials have none.
func names(tag string) map[string]string {
	return map[string]string{
		"org.opencontainers.image.ref.name": tag,
		"io.containerd.image.name":          "docker.io/library/" + program + ":" + tag,
	}
}

// write leaves the image as an OCI layout in the folder out, with its bills of materials, and alone as one file in out.tar: who
// loads a file takes one image, and refuses it if there is more.
func (p *product) write(out, tag string) error {
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	alone := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: p.index, Descriptor: v1.Descriptor{Annotations: names(tag)},
	})
	folder, err := layout.Write(out, alone)
	if err != nil {
		return err
	}
	if err := archive(out, out+".tar"); err != nil {
		return err
	}
	for _, bill := range p.bills {
		if err := folder.AppendImage(bill); err != nil {
			return err
		}
	}
	return nil
}

// archive packs a folder without what differs from one run to the next: times, owners, the umask.
func archive(folder, file string) (err error) {
	into, err := os.Create(file)
	if err != nil {
		return err
	}
	w := tar.NewWriter(into)
	defer func() { err = errors.Join(err, w.Close(), into.Close()) }()
	return filepath.WalkDir(folder, func(path string, found fs.DirEntry, err error) error {
		if err != nil || found.IsDir() {
			return err
		}
		within, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return entry(w, tar.Header{Name: filepath.ToSlash(within), Mode: 0o644}, content)
	})
}

// push uses the credentials that `docker login` and its kind have left. The bills go last: they refer to the image.
func (p *product) push(to string) error {
	tag, err := name.NewTag(to, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("%w; name it REGISTRY/REPOSITORY:TAG", err)
	}
	login := remote.WithAuthFromKeychain(authn.DefaultKeychain)
	if err := remote.WriteIndex(tag, p.index, login); err != nil {
		return err
	}
	for _, bill := range p.bills {
		digest, err := bill.Digest()
		if err != nil {
			return err
		}
		if err := remote.Write(tag.Digest(digest.String()), bill, login); err != nil {
			return err
		}
	}
	return nil
}
