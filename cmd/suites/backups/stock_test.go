package backups_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/format/formattest"
)

// The documented commands must restore a full snapshot with age, zstd and etcdutl, without this program's own code.
func TestStockTools_restoreAFullSnapshot(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"age", "zstd"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("skipped: %s is not installed", tool)
		}
	}
	pair := formattest.NewKeys(t)
	for name, flags := range map[string][]string{
		"encrypted": {"--backup-recipients=" + pair.Recipients, "--backup-identities=" + pair.Identities},
		"plain":     nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMember(t, flags...)
			run := m.StartReady()
			m.writeAllKinds()
			m.command("backup", "now")
			want := now(m.Pod)
			run.Shutdown()
			fulls, err := filepath.Glob(filepath.Join(m.dir, "gen", "000001", "full", "*", "data"))
			require.NoError(t, err)
			snapshot := filepath.Join(t.TempDir(), "full.db")
			script := `zstd -q -d < "$0" > "$1"`
			if flags != nil {
				script = `age -d -i "$2" "$0" | zstd -q -d > "$1"`
			}
			output, err := exec.Command("sh", "-c", script, slices.Max(fulls), snapshot, pair.Identities).CombinedOutput()
			require.NoError(t, err, string(output))
			p := restored(t, snapshot)
			again := p.StartReady()
			assert.Equal(t, want, now(p))
			again.Shutdown()
			if flags != nil {
				content, err := os.ReadFile(slices.Max(fulls))
				require.NoError(t, err)
				assert.Contains(t, string(content[:32]), "age-encryption.org")
			}
		})
	}
}
