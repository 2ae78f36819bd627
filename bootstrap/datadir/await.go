package datadir

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	layout "go.etcd.io/etcd/server/v3/storage/datadir"

	"etcd-wrapper/bootstrap"
)

// databaseRetry is the pause before looking again whether another process still holds the database.
const databaseRetry = 200 * time.Millisecond

// Await returns when no other process holds the database, or when ctx ends. Whenever it finds that one has it open for
// writing it says so to writing. Inside etcd the same wait could not be interrupted, and a stop during it would look like
// a stop of an etcd that had opened its data.
func Await(ctx context.Context, dataDir string, log zerolog.Logger, writing func()) error {
	path := layout.ToBackendFileName(dataDir)
	for told := false; ; told = true {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("gave up before etcd was opened: %w", err)
		}
		use := bootstrap.UseOf(path)
		if use == bootstrap.Unused {
			return nil
		}
		if use == bootstrap.Writing {
			writing()
		}
		if !told {
			log.Warn().Str("path", path).Msg("another process holds the database; waiting until it lets go")
		}
		select {
		case <-ctx.Done():
		case <-time.After(databaseRetry):
		}
	}
}
