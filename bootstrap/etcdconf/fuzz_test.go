package etcdconf_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/bootstrap/etcdconf"
)

// FuzzParse fails on a panic and, because the worker dies, on an exit of the process.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sidecarYAML(f)))
	for _, line := range []string{
		"", "listen-peer-urls: foo", "cors: x", "initial-cluster: default=http://a:1", "log-level: debug", "name: [", "---",
		"experimental-initial-corrupt-check: 1", "experimental-snapshot-catch-up-entries: 1", "peer-transport-security: {}",
		"client-transport-security: {cert-file: a, key-file: b}", "feature-gates: AllAlpha=true", "quota-backend-bytes: 0x1F",
		"auto-compaction-retention: 1h", "discovery-config: {client: {secure: {}, auth: {}}}", "a: &a [*a]", "<<: {name: x}",
		"CORS: {}", "~: 1", "name: !!binary aGk=", `name: "\x7f"`, "snapshot-count: 1e3", "tls-min-version: TLS1.3",
	} {
		f.Add([]byte(minimal + line))
	}
	f.Fuzz(func(t *testing.T, yaml []byte) {
		if strings.Contains(string(yaml), "jwt") {
			t.Skip("etcd opens any file that is named there")
		}
		checked, err := etcdconf.Parse(yaml)
		if err != nil {
			var keyError *etcdconf.KeyError
			require.True(t, errors.As(err, &keyError), err)
			require.NotContains(t, err.Error(), "panicked")
			return
		}
		require.True(t, filepath.IsAbs(checked.Etcd.Dir))
	})
}
