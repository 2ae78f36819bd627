package backup_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"etcd-wrapper/backup"
	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/facts"
	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store/memory"
	"etcd-wrapper/backup/writer"
	"etcd-wrapper/backup/writer/capture"
)

// follower is a member that is not the leader.
type follower struct{ writer.Etcd }

func (f follower) Identity() capture.Identity {
	identity := f.Etcd.Identity()
	identity.Leader = false
	return identity
}

// watch makes the subject a standby. The writer has stored all revisions and stopped.
func (s *subject) watch(t *testing.T) {
	t.Helper()
	s.put(t, 10)
	s.beginUntil(t, func(f backup.Facts) bool { return f.Shipped.Revision == s.etcd.Revision() }, "everything is stored")
	s.nextRun(t)
	s.Begin(follower{writer.Server(s.etcd.Server)}, s.dir, "")
	s.eventually(t, func(f backup.Facts) bool { return f.Shipped.Role == facts.Standby }, "another member writes")
}

// objects returns the names of all objects.
func (s *subject) objects(t *testing.T) (names []string) {
	t.Helper()
	for object, err := range s.store.List(t.Context(), "", "") {
		require.NoError(t, err)
		names = append(names, object.Name)
	}
	return names
}

func TestStandby_uploadsWhatTheWriterLeft(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.watch(t)
	s.put(t, 10)
	revision := s.etcd.Revision()
	s.stop(t)
	require.NoError(t, s.Flush(soon(t), s.database()))
	assert.Equal(t, revision, s.stored(t))
	history, err := archive.New(s.store, &format.Keys{}).History(t.Context())
	require.NoError(t, err)
	assert.Len(t, history.Newest().Fulls, 1, "segments are enough")
}

// Reserving revisions is the first task of a writer.
func TestStandby_leavesTasksToTheWriter(t *testing.T) {
	in := memory.New()
	in.Inject(memory.Fault{Op: memory.Put, Prefix: "reservation/", Err: memory.ErrDenied})
	s := newSubjectIn(t, in, archive.Verified)
	s.beginUntil(t, func(f backup.Facts) bool { return f.Undone != nil }, "the writer cannot reserve revisions")
	s.nextRun(t)
	in.ClearFaults()
	s.Begin(follower{writer.Server(s.etcd.Server)}, s.dir, "")
	s.eventually(t, func(f backup.Facts) bool { return f.Shipped.Role == facts.Standby && !f.Listed.At.IsZero() }, "it lists the store")
	assert.Zero(t, s.reserved(t))
}

// The store has all revisions but not the user. The member cannot know whether the user has been deleted in the
// meantime.
func TestStandby_doesNotClaimToHaveStoredUsers(t *testing.T) {
	s := newSubject(t, archive.Verified)
	s.watch(t)
	_, err := s.etcd.Client.UserAdd(t.Context(), "somebody", "secret")
	require.NoError(t, err)
	s.stop(t)
	before := s.objects(t)
	err = s.Flush(soon(t), s.database())
	require.ErrorIs(t, err, writer.ErrRowsOnly)
	assert.ErrorContains(t, err, "all revisions of this member")
	assert.Equal(t, before, s.objects(t))
}

func TestStandby_startsNoChain(t *testing.T) {
	for name, breaks := range map[string]func(t *testing.T, s *subject){
		"the store is empty": func(t *testing.T, s *subject) { t.Helper(); s.empty(t) },
		"a compaction has left a gap": func(t *testing.T, s *subject) {
			t.Helper()
			s.put(t, 10)
			_, err := s.etcd.Client.Compact(t.Context(), s.etcd.Revision())
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSubject(t, archive.Verified)
			s.watch(t)
			s.end(t)
			breaks(t, s)
			s.etcd.Server.Stop()
			before := s.objects(t)
			require.ErrorIs(t, s.Flush(soon(t), s.database()), writer.ErrNoChain)
			assert.Equal(t, before, s.objects(t))
		})
	}
}

// empty deletes all objects.
func (s *subject) empty(t *testing.T) {
	t.Helper()
	for _, name := range s.objects(t) {
		require.NoError(t, s.store.Delete(t.Context(), name))
	}
}
