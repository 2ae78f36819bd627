package bootstrap

import (
	"strings"

	"sigs.k8s.io/yaml"
)

// IsNewSingleMember reports whether a configuration is that of the only member of a new cluster. The sidecar's answer is
// then the same before and after an initialization: there is no other member whose view could change it.
func IsNewSingleMember(config []byte) bool {
	var is struct {
		Cluster string `json:"initial-cluster"`
		State   string `json:"initial-cluster-state"`
	}
	if err := yaml.Unmarshal(config, &is); err != nil {
		return false
	}
	return is.State == "new" && strings.Count(is.Cluster, "=") == 1 && !strings.Contains(is.Cluster, ",")
}
