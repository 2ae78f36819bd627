package writer

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/archive"
	"etcd-wrapper/internal/durable"
	"etcd-wrapper/internal/smallfile"
)

// way is a history that data went along with: a generation, which begins once. Copies of a store have the same ones.
type way struct {
	Cluster    string    `json:"cluster"`
	Generation int       `json:"generation"`
	Created    time.Time `json:"created"`
	Left       bool      `json:"left,omitempty"` // the data took another one
}

func wayOf(g archive.Generation) way {
	return way{Cluster: g.Cluster, Generation: g.Number, Created: g.Created.UTC()}
}

// String is a line of the file.
func (w way) String() string {
	line, _ := json.Marshal(w) // which has nothing that could fail
	return string(line)
}

// of tells whether both are about one generation.
func (w way) of(other way) bool {
	return w.Cluster == other.Cluster && w.Generation == other.Generation && w.Created.Equal(other.Created)
}

const (
	mostWays = 16      // that are remembered: there is one for each store that the data were ever kept in
	wayLimit = 4 << 10 // bytes of the file
)

// recall reads which ways the data are known to have gone, oldest first. Whoever knows better may have written it.
func (s *Shipper) recall() {
	content, err := smallfile.ReadHere(s.options.WayFile, wayLimit)
	var came []way
	for lines := json.NewDecoder(bytes.NewReader(content)); err == nil && lines.More(); {
		var one way
		if err = lines.Decode(&one); err == nil {
			came = append(came, one)
		}
	}
	switch {
	case err == nil:
		s.came = came
	case !errors.Is(err, fs.ErrNotExist):
		s.options.Log.Warn().Err(err).Str("file", s.options.WayFile).Msg("backups: it cannot be read which backups etcd's data go with")
	}
}

// goAlong remembers that the data go with the present generation.
func (s *Shipper) goAlong() { s.goes(wayOf(s.generation)) }

// goAstray remembers that they don't, for when nothing shows it any more.
func (s *Shipper) goAstray() {
	left := wayOf(s.generation)
	left.Left = true
	s.goes(left)
}

func (s *Shipper) goes(now way) {
	if count := len(s.came); count > 0 && s.came[count-1].String() == now.String() {
		return
	}
	s.came = append(slices.DeleteFunc(slices.Clone(s.came), now.of), now)
	s.came = s.came[max(0, len(s.came)-mostWays):]
	var lines strings.Builder
	for _, one := range s.came {
		lines.WriteString(one.String() + "\n")
	}
	if err := durable.Replace(s.options.WayFile, []byte(lines.String())); err != nil {
		s.options.Log.Warn().Err(err).Msg("backups: it is not remembered which backups etcd's data go with")
	}
}

// cameAlong tells whether the data are known to go with the present generation. The id of a restored cluster is nobody else's, so
// there it is enough that nothing is known to the contrary.
func (s *Shipper) cameAlong() bool {
	along := wayOf(s.generation)
	if known, _ := s.went(along.of); known {
		return true
	}
	s.recall()
	known, left := s.went(along.of)
	return known || s.generation.Parent != 0 && !left
}

// went tells what was remembered last of a way.
func (s *Shipper) went(is func(way) bool) (along, left bool) {
	for _, one := range slices.Backward(s.came) {
		if is(one) {
			return !one.Left, one.Left
		}
	}
	return false, false
}
