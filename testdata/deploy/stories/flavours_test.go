package stories

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOneMember_withSidecar(t *testing.T) {
	w := newEnvironment(t)
	w.apply(oneWithSidecar)
	w.awaitReady(1)
	w.greet()
	assert.True(t, w.greeted())
	assert.Contains(t, w.exec("etcd-main-0", "status"), "etcd-main-0: Serving, ready")
}

func TestThreeMembers_withSidecars(t *testing.T) {
	w := newEnvironment(t)
	w.apply(threeWithSidecars)
	w.secret("etcd-main-backup-credentials", map[string]string{"region": "eu-west-1"})
	w.awaitReady(3)
	w.greet()
	assert.ElementsMatch(t, []string{"etcd-main-0", "etcd-main-1", "etcd-main-2"}, w.voters())
}

// A member must keep its volume, exit record and name when its sidecar is removed and added again. As docs/upgrade.md
// says, the sidecar's etcd must still be able to read the data. When the member returns to standalone mode, it must
// continue its previous backups.
func TestOneMember_sidecarToStandaloneAndBack(t *testing.T) {
	w := newEnvironment(t)
	w.apply(oneWithSidecar)
	w.awaitReady(1)
	w.greet()
	writes := w.startWriter()
	asFirst := strings.Count(w.log("etcd-main-0"), "full validation")
	for _, flavour := range []string{one, oneWithSidecar, one} {
		w.apply(flavour, readableFor35)
		w.awaitReady(1)
		require.True(t, w.greeted(), "the key is missing after applying %s", flavour)
	}
	assert.NoError(t, contains(w.log("etcd-main-0"), "sanity"), "each start must follow a clean stop")
	assert.Equal(t, asFirst, strings.Count(w.log("etcd-main-0"), "full validation"))
	w.checkBackups("etcd-main-0", writes)
}

// readableFor35 is the setting that docs/upgrade.md recommends to users who may want to return to etcd 3.5.
const readableFor35 = `dataVersion: "3.5"`

// The test follows the migration in docs/upgrade.md, in which the sidecar first takes a full snapshot.
func TestThreeMembers_sidecarToStandaloneAndBack(t *testing.T) {
	w := newEnvironmentWithBucket(t)
	w.apply(threeWithSidecars)
	w.awaitReady(3)
	writes := w.startWriter()
	assert.Contains(t, w.recipe("docs/upgrade.md", "/snapshot/full", nil), `"kind":"Full"`)
	asked := 0
	for member := range w.pods() {
		asked += strings.Count(w.logOf(member, "backup-restore"), "full snapshot requested")
	}
	assert.Equal(t, 1, asked, "exactly one sidecar must receive the request")
	w.apply(three, readableFor35)
	w.awaitReady(3)
	w.awaitVerified("etcd-main-0")
	w.apply(threeWithSidecars)
	w.awaitReady(3)
	w.apply(three, readableFor35) // backups continue in the same store
	w.awaitReady(3)
	w.checkBackups("etcd-main-1", writes)
	for name := range w.pods() {
		status := w.exec(name, "status", "-v")
		assert.Contains(t, status, "3.5 wanted, kept", name)
	}
}
