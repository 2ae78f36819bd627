package shipper

import (
	"encoding/json"
	"errors"
	"io/fs"
	"time"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/exitcode/durable"
	"etcd-wrapper/exitcode/smallfile"
)

// way is the history that data go along with: a generation, which begins once. Copies of a store have the same ones. A cluster alone
// says that the data go with none of its generations.
type way struct {
	Cluster    string    `json:"cluster"`
	Generation int       `json:"generation"`
	Created    time.Time `json:"created"`
}

func wayOf(g archive.Generation) way {
	return way{Cluster: g.Cluster, Generation: g.Number, Created: g.Created.UTC()}
}

func (w way) is(other way) bool { return w.String() == other.String() }

// String is what the file has.
func (w way) String() string {
	line, _ := json.Marshal(w) // which has nothing that could fail
	return string(line)
}

// wayLimit is more bytes than a way has.
const wayLimit = 4 << 10

// recall reads which way the data went as that was last known. Whoever knows better may have written it.
func (s *Shipper) recall() {
	var came way
	content, err := smallfile.ReadHere(s.options.WayFile, wayLimit)
	if err == nil {
		err = json.Unmarshal(content, &came)
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
func (s *Shipper) goAstray() { s.goes(way{Cluster: s.generation.Cluster}) }

func (s *Shipper) goes(now way) {
	if s.came.is(now) {
		return
	}
	s.came = now
	if err := durable.Replace(s.options.WayFile, []byte(now.String()+"\n")); err != nil {
		s.options.Log.Warn().Err(err).Msg("backups: it is not remembered which backups etcd's data go with")
	}
}

// cameAlong tells whether the data are known to go with the present generation. The id of a restored cluster is nobody else's, so
// there it is enough that nothing is known to the contrary.
func (s *Shipper) cameAlong() bool {
	if !s.came.is(wayOf(s.generation)) {
		s.recall()
	}
	return s.came.is(wayOf(s.generation)) || s.generation.Parent != 0 && s.came == way{}
}
