package bootstrap

import (
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// ConfigPreview is what a configuration says about the member, as far as it decides how early it may be asked for.
type ConfigPreview struct {
	// NewAlone says that it is that of the only member of a new cluster. The sidecar's answer is then the same before and
	// after an initialization: there is no other member whose view could change it.
	NewAlone bool
	// LogDir is the directory of etcd's log; empty if none is named.
	LogDir string
}

// Preview looks at a configuration, which need not be a sound one.
func Preview(config []byte) ConfigPreview {
	var is struct {
		Cluster string `json:"initial-cluster"`
		State   string `json:"initial-cluster-state"`
		DataDir string `json:"data-dir"`
		WALDir  string `json:"wal-dir"`
	}
	if err := yaml.Unmarshal(config, &is); err != nil {
		return ConfigPreview{}
	}
	preview := ConfigPreview{NewAlone: is.State == "new" && strings.Count(is.Cluster, "=") == 1 && !strings.Contains(is.Cluster, ",")}
	switch {
	case is.WALDir != "":
		preview.LogDir = filepath.Clean(is.WALDir)
	case is.DataDir != "":
		preview.LogDir = filepath.Join(is.DataDir, "member", "wal")
	}
	return preview
}
