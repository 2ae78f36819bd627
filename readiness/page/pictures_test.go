package page_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup/facts"
	"etcd-wrapper/member/state"
	"etcd-wrapper/readiness/status"
)

// cluster changes a document so that it describes a member of a three-member cluster, whose backups have an owner.
func cluster(d status.Document) status.Document {
	d.Pod, d.MemberID, d.Standalone, d.SidecarStatus, d.Certificates, d.LastError = "etcd-main-0", "8e9e05c52164694d", true, "", nil, nil
	d.Member = state.Member{
		Name: "etcd-main-0", ClusterID: "cdf818194e3a8c32", Leader: "91bc3c398fb3c146", Term: 7, Revision: 41512,
		DBSize: 2415919104, DBInUse: 1610612736, Quota: 8 << 30, VolumeFree: 40 << 30, VolumeSize: 64 << 30,
		Peers: []state.Peer{
			{Name: "etcd-main-0", ID: "8e9e05c52164694d", URLs: []string{"https://etcd-main-0.etcd-main-peer:2380"}, Active: true},
			{Name: "etcd-main-1", ID: "91bc3c398fb3c146", URLs: []string{"https://etcd-main-1.etcd-main-peer:2380"}, Active: true, Leader: true},
			{Name: "etcd-main-2", ID: "fd422379fda50e48", URLs: []string{"https://etcd-main-2.etcd-main-peer:2380"}, Active: true},
		},
	}
	if d.Backup != nil {
		d.Backup.Cluster, d.Backup.Owner, d.Backup.Generation = "k7", "shop/etcd-main", 2
	}
	return d
}

// healthy changes a document so that it describes a member without any problems. The README contains its screenshot.
func healthy(d *status.Document) {
	d.LastExit, d.Validation = "terminated", &status.Validation{Mode: "sanity", Reason: "the last run was stopped cleanly"}
	d.Transitions = slices.DeleteFunc(d.Transitions, func(t status.Transition) bool { return t.Count == 3 })
	d.Timeline = slices.DeleteFunc(d.Timeline, func(e status.TimelineEvent) bool { return e.Kind == "problem" })
	d.Timeline[0] = status.TimelineEvent{At: d.Timeline[0].At, Kind: "start", Health: "ok", Message: "the process started"}
	t := &status.Trends{Interval: 2, Until: before(time.Second)}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 100 {
		grown, load := float32(i)/100, 1+0.2*random.Float32()
		t.Write, t.Read, t.Fsync = append(t.Write, .003*load), append(t.Read, .0006*load), append(t.Fsync, .004*load*load)
		t.BackupLag, t.Revisions = append(t.BackupLag, .3+.4*random.Float32()), append(t.Revisions, 300*load)
		t.DBSize, t.DBInUse = append(t.DBSize, 2.25*(1<<30)), append(t.DBInUse, (1.4+.1*grown)*(1<<30))
	}
	d.Trends = t
}

// states returns the documents for the screenshots by name.
func states() map[string]status.Document {
	with := func(d status.Document, change func(*status.Document)) status.Document {
		d = cluster(d)
		change(&d)
		return d
	}
	closed := func(d *status.Document) { d.Member = state.Member{Name: "etcd-main-0"} }
	return map[string]status.Document{
		"serving":  with(well(), healthy),
		"degraded": cluster(behind()),
		"nospace": with(well(), func(d *status.Document) {
			d.DBSize = 8 << 30
			d.Checks[4] = status.Check{Name: "space", Status: "degraded", Reason: "writes are rejected: compact, delete keys or raise quota-backend-bytes"}
		}),
		"testfailed": with(well(), func(d *status.Document) {
			d.Backup.LastVerification = &facts.Verification{Revision: 40100, At: before(time.Hour), Reason: "the hash of the restored database differs from etcd's own"}
		}),
		"quorum": with(well(), func(d *status.Document) {
			d.Ready, d.Leader, d.Peers[1].Leader, d.Peers[1].Active, d.Peers[2].Active = false, "", false, false, false
			d.Checks[0] = status.Check{Name: "quorum", Status: "failed", Reason: "the cluster has no leader; no connection to etcd-main-1, etcd-main-2: check that each is running and reachable; etcd-wrapper status shows what it is waiting for"}
		}),
		"waiting":  waiting(),
		"recovery": with(recovering(), closed),
		"refused": with(recovering(), func(d *status.Document) {
			closed(d)
			d.Recovery = &status.Recovery{State: "Refused", Since: before(time.Minute), Reason: "the data in the store belongs to another cluster; start once with --adopt=k7 to adopt the store"}
			d.Reason = d.Recovery.Reason
		}),
		"defragmentation": cluster(defragmenting()),
		"terminated": with(well(), func(d *status.Document) {
			d.State, d.Ready, d.Reason = "Terminated", false, "everything the next start needs is on disk"
			d.Peers = nil
		}),
	}
}

// In all states, at the sizes of desktops and phones and in both color schemes, the page must not scroll
// horizontally, and all text must be readable.
func TestInABrowser_thePageInEveryState(t *testing.T) {
	shared := newBrowser(t)
	for name, d := range states() {
		t.Run(name, func(t *testing.T) {
			b := shared.forTest(t)
			p := b.open(d)
			b.waitForText("#state", status.HeadlineOf(d).Phase)
			if name == "terminated" {
				p.kill()
				b.WaitForElements("body.lost")
			}
			b.screenshot(name)
			b.setWindow(desk, light)
			require.True(t, b.evaluate(`new Set([...document.querySelectorAll("#tiles > li")].map((tile) => tile.offsetHeight)).size === 1`), "all tiles have the same height")
			for _, window := range []size{desk, phone} {
				for _, theme := range []string{light, dark} {
					b.setWindow(window, theme)
					b.WaitFor(`innerWidth === %d`, window.width)
					require.True(t, b.evaluate(`document.documentElement.scrollWidth <= innerWidth`), "no horizontal scrolling at a width of %d", window.width)
					require.Empty(t, b.unreadableText(), "text with low contrast in the %s color scheme", theme)
				}
			}
			require.NotRegexp(t, `undefined|null|NaN`, b.text("main"))
			require.Empty(t, repeated(b), "long texts that appear more than once")
		})
	}
}

// repeated returns the long strings that appear more than once on the page, except in the timeline and the steps.
func repeated(b browser) (texts []string) {
	b.do(`(() => {
		const seen = new Map();
		for (const part of document.querySelectorAll("#conditions summary, #reason, #tiles .why, #facts dd, #checks .why")) {
			const text = part.textContent.trim();
			if (text.length > 30 && part.checkVisibility()) seen.set(text, (seen.get(text) ?? 0) + 1);
		}
		return [...seen].filter(([, times]) => times > 1).map(([text]) => text);
	})()`, &texts)
	return texts
}
