package retention

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/backup/store"
	"etcd-wrapper/backup/store/memory"
)

// A bucket may be locked as a whole, for weeks, or its user not be allowed to delete.
func TestWhereNothingMayBeDeletedYetMergingGoesOnAndFewAreAskedFor(t *testing.T) {
	for name, refusal := range map[string]error{"locked": memory.ErrLocked, "not allowed": memory.ErrDenied} {
		t.Run(name, func(t *testing.T) {
			w := newWriter(t)
			w.store.Inject(memory.Fault{Op: memory.Delete, Err: refusal})
			var err error
			for i := range 2 * 60 * 6 {
				w.segment()
				w.sleep(10 * time.Second)
				if i%6 == 0 {
					_, err = w.merger.Run(t.Context(), 1)
				}
			}
			asked := w.asked(memory.Delete, func() { _, err = w.merger.Run(t.Context(), 1) })
			assert.LessOrEqual(t, asked, 2*mostRefused)
			assert.Equal(t, errors.Is(refusal, store.ErrDenied), errors.Is(err, store.ErrDenied), "what is locked is for later, and no failure")
			assert.NotEmpty(t, w.objects(archive.Hour), "minutes become hours all the same")
			w.store.Heal()
			assert.Greater(t, w.run().Deleted, 600, "what is due, once that is possible")
			w.requireWhole(w.start.Position.Revision - 1)
		})
	}
}
