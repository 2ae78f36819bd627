package endtoend_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/cmd/suites/certificates"
)

const tasks = "docs/tasks.md"

// task returns a script that runs the commands of a code block on the page. The arguments are those of block and
// typed.
func task(t *testing.T, first string, replacements ...string) string {
	t.Helper()
	return typed(block(t, tasks, first), replacements...)
}

func TestPageCommands_undoDeletion(t *testing.T) {
	t.Parallel()
	printed, _ := follow(t, inAnother("make run")+`
etcd-wrapper etcdctl put greeting hello
etcd-wrapper etcdctl put /registry/one 1
etcd-wrapper etcdctl put /registry/two 2
etcd-wrapper etcdctl del --prefix /registry
stored 5
`+task(t, "etcd-wrapper backup diff --from", "time:-15m", "revision:4")+`
echo now: $(etcd-wrapper etcdctl get --prefix /registry)
stopped
`)
	assertPrinted(t, printed, "deleted /registry/one", "deleted /registry/two", "now: /registry/one 1 /registry/two 2")
}

func TestPageCommands_freeSpace(t *testing.T) {
	t.Parallel()
	config, err := os.ReadFile("../../../deploy/systemd/etcd.yaml")
	require.NoError(t, err)
	revision := "$(etcd-wrapper etcdctl endpoint status -w fields | grep Revision | grep -o '[0-9]*')"
	printed, _ := follow(t, "cat >etcd.yaml <<EOF\n"+string(config)+"quota-backend-bytes: 8388608\nEOF\nmkdir volume\n"+
		inAnother("etcd-wrapper start-etcd --standalone --volume-dir=volume --etcd-config-file=etcd.yaml")+`
head -c 1000000 /dev/zero | tr '\0' x >value
: >puts
until grep -q 'database space exceeded' puts; do kill -0 "$run"; etcd-wrapper etcdctl put key <value >>puts 2>&1 || true; done
etcd-wrapper etcdctl alarm list
`+task(t, "etcd-wrapper etcdctl endpoint status", "REVISION", revision)+`
etcd-wrapper etcdctl put key after
stopped
`)
	assertPrinted(t, printed, "alarm:NOSPACE", "compacted revision", "$ etcd-wrapper etcdctl alarm list\nOK\n")
}

func TestPageCommands_removePreservedCopies(t *testing.T) {
	t.Parallel()
	printed, dir := follow(t, inAnother("make run")+"mkdir .run/new.etcd.aside-20261122T120000Z\n"+
		task(t, "etcd-wrapper status\ndu", "VOLUME", ".run")+"stopped\n")
	assertPrinted(t, printed, "Serving", "new.etcd.aside-20261122T120000Z")
	assert.NoDirExists(t, filepath.Join(dir, ".run", "new.etcd.aside-20261122T120000Z"))
	assert.DirExists(t, filepath.Join(dir, ".run", "new.etcd", "member"))
}

func TestPageCommands_rebuildAfterQuorumLoss(t *testing.T) {
	t.Parallel()
	start := block(t, tasks, "etcd-wrapper start-etcd --standalone --volume-dir=VOLUME")
	start.Text = strings.NewReplacer("VOLUME", "volume", "STORE", "file://$PWD/backups").Replace(start.Text)
	before, _, _ := strings.Cut(start.Text, " --restore-to")
	config, err := os.ReadFile("../../../deploy/systemd/etcd.yaml")
	require.NoError(t, err)
	printed, _ := follow(t, "cat >etcd.yaml <<EOF\n"+string(config)+"EOF\nmkdir volume backups\n"+
		inAnother(before)+"etcd-wrapper etcdctl put greeting hello\nstored 2\nstopped\nrm -r volume/new.etcd\n"+
		inAnother(start.Text)+"etcd-wrapper etcdctl get greeting -w fields\nstopped\n")
	assertPrinted(t, printed, `"Revision" : 100000`, `"Value" : "hello"`)
}

func TestPageCommands_migrateFromKubeadm(t *testing.T) {
	t.Parallel()
	authority := certificates.NewAuthority(t, "ca")
	folder := filepath.Dir(authority.Bundle())
	for _, name := range []string{"server", "peer", "healthcheck-client"} {
		authority.Issue(name)
	}
	own := []string{"/etc/kubernetes/pki/etcd", folder, "/var/lib", "lib", "/srv/etcd-backups", "$PWD/backups", "file:///", "file:///", "/etc/etcd/", ""}
	absolute := strings.NewReplacer("/etc/kubernetes/pki/etcd", folder, "/var/lib", "$PWD/lib")
	exports := block(t, tasks, "export ETCD_WRAPPER_ETCD_CLIENT_CERT_PATH").Commands()
	require.Len(t, exports, 3)
	printed, _ := follow(t, inAnother("make run")+`
etcd-wrapper etcdctl put greeting hello
etcd-wrapper etcdctl snapshot save plain.db
stopped
etcd-wrapper etcdutl snapshot restore plain.db --data-dir lib/etcd --name node-1 \
	--initial-cluster node-1=https://127.0.0.1:2380 --initial-advertise-peer-urls https://127.0.0.1:2380
`+task(t, "mkdir /var/lib/etcd-volume", own...)+
		"cat >etcd.yaml <<EOF\n"+absolute.Replace(block(t, tasks, "name: node-1").Text)+"EOF\nmkdir backups\n"+
		strings.NewReplacer(own...).Replace(strings.Join(exports[:2], "\n"))+"\n"+
		inAnother(strings.NewReplacer("/var/lib", "$PWD/lib", "/srv/etcd-backups", "$PWD/backups", "/etc/etcd/", "").Replace(exports[2]))+
		"etcd-wrapper etcdctl get greeting\nstopped\n")
	assertPrinted(t, printed, "restored snapshot", "greeting\nhello\n")
}

func TestPageCommands_rehearseRestore(t *testing.T) {
	t.Parallel()
	printed, dir := follow(t, inAnother("make run")+"etcd-wrapper etcdctl put greeting hello\nstored 2\n"+
		task(t, "etcd-wrapper backup verify", "time:-15m", "latest")+"stopped\n")
	assertPrinted(t, printed, "recorded the result in the store", "snap.db contains revision 2")
	assert.DirExists(t, filepath.Join(dir, "rehearsal", "member"))
}
