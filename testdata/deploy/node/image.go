package node

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
)

// An Image is an unpacked container image.
type Image struct {
	Root   string // directory that contains the image's files
	Config v1.Config
}

// Unpack extracts the image for this machine's platform from an OCI layout.
func Unpack(folder, root string) (*Image, error) {
	all, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		return nil, err
	}
	parts, err := all.IndexManifest()
	if err != nil {
		return nil, err
	}
	index, err := all.ImageIndex(parts.Manifests[0].Digest)
	if err != nil {
		return nil, err
	}
	return unpackIndex(index, root)
}

// pull downloads the image for this machine's platform from a registry.
func pull(reference, root string) (*Image, error) {
	tag, err := name.ParseReference(reference)
	if err != nil {
		return nil, err
	}
	index, err := remote.Index(tag)
	if err != nil {
		return nil, err
	}
	return unpackIndex(index, root)
}

func unpackIndex(index v1.ImageIndex, root string) (*Image, error) {
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, part := range manifest.Manifests {
		if part.Platform.Architecture == runtime.GOARCH {
			return unpackPart(index, part.Digest, root)
		}
	}
	return nil, fmt.Errorf("no image for architecture %s", runtime.GOARCH)
}

func unpackPart(index v1.ImageIndex, digest v1.Hash, root string) (*Image, error) {
	image, err := index.Image(digest)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	content := mutate.Extract(image)
	defer content.Close()
	return &Image{Root: root, Config: file.Config}, untar(content, root)
}

func untar(content io.Reader, root string) error {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	for r := tar.NewReader(content); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := unpackFile(header, r, filepath.Join(root, header.Name)); err != nil {
			return err
		}
	}
}

func unpackFile(header *tar.Header, content io.Reader, path string) error {
	if header.Typeflag == tar.TypeDir {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	} else if err := copyTo(path, content); err != nil {
		return err
	}
	if err := os.Chown(path, header.Uid, header.Gid); err != nil {
		return err
	}
	return os.Chmod(path, header.FileInfo().Mode())
}

func copyTo(path string, content io.Reader) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

// imageStore holds a node's images, keyed by repository name.
type imageStore struct {
	mu       sync.Mutex
	images   map[string]*Image
	registry string // HOST:PORT of the registry from which missing images are pulled; empty if none
}

// PullFrom allows the node to pull images from a registry at HOST:PORT on loopback.
func (n *Node) PullFrom(registry string) {
	n.images.mu.Lock()
	defer n.images.mu.Unlock()
	n.images.registry = registry
}

func (n *Node) imageOf(container *corev1.Container) (*Image, error) {
	n.images.mu.Lock()
	defer n.images.mu.Unlock()
	name := repository(container.Image)
	if image, ok := n.images.images[name]; ok {
		return image, nil
	}
	if n.images.registry == "" || !strings.HasPrefix(name, n.images.registry+"/") {
		return nil, fmt.Errorf("image %s not found", container.Image)
	}
	folder := strings.NewReplacer("/", "_", ":", "_").Replace(name) // overlayfs separates lower directories with colons
	image, err := pull(container.Image, filepath.Join(n.dir, "images", folder))
	if err != nil {
		return nil, fmt.Errorf("cannot pull %s: %w", container.Image, err)
	}
	n.images.images[name] = image
	return image, nil
}

func repository(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if at := strings.LastIndex(name, ":"); at > strings.LastIndex(name, "/") {
		name = name[:at]
	}
	return name
}
