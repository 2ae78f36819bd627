package backup

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

// abandoned is how old the directory of a command must be for nobody to be restoring to it any longer.
const abandoned = 24 * time.Hour

// clear removes what test restores that were killed have left on the volume: each may be as large as the database.
func (b *Backups) clear() {
	own := b.options.ScratchDir
	if own == "" {
		return
	}
	left := []string{own}
	beside, _ := os.ReadDir(filepath.Dir(own)) // the volume, which etcd has just been started on
	for _, entry := range beside {
		info, err := entry.Info()
		if err == nil && strings.HasPrefix(entry.Name(), filepath.Base(own)+"-") && time.Since(info.ModTime()) > abandoned {
			left = append(left, filepath.Join(filepath.Dir(own), entry.Name()))
		}
	}
	for _, path := range left {
		if err := os.RemoveAll(path); err != nil {
			b.options.Log.Warn().Err(err).Msg("backups: what a test restore has left on the volume stays there")
		}
	}
}
