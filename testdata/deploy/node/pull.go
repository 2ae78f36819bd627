package node

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// shelf is where a node has its images, by the names of their repositories.
type shelf struct {
	mu       sync.Mutex
	images   map[string]*Image
	registry string // whose images are pulled; there need be none
}

// PullFrom lets the node pull images from a registry, HOST:PORT on loopback, that it was not given.
func (n *Node) PullFrom(registry string) {
	n.shelf.mu.Lock()
	defer n.shelf.mu.Unlock()
	n.shelf.registry = registry
}

func (n *Node) imageOf(container *corev1.Container) (*Image, error) {
	n.shelf.mu.Lock()
	defer n.shelf.mu.Unlock()
	name := repository(container.Image)
	if image, ok := n.shelf.images[name]; ok {
		return image, nil
	}
	if n.shelf.registry == "" || !strings.HasPrefix(name, n.shelf.registry+"/") {
		return nil, fmt.Errorf("there is no image %s", container.Image)
	}
	folder := strings.NewReplacer("/", "_", ":", "_").Replace(name) // a colon stands between folders that are mounted
	image, err := pull(container.Image, filepath.Join(n.dir, "images", folder))
	if err != nil {
		return nil, fmt.Errorf("cannot pull %s: %w", container.Image, err)
	}
	n.shelf.images[name] = image
	return image, nil
}

func repository(image string) string {
	name, _, _ := strings.Cut(image, "@")
	if at := strings.LastIndex(name, ":"); at > strings.LastIndex(name, "/") {
		name = name[:at]
	}
	return name
}
