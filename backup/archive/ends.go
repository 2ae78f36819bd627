package archive

import (
	"context"
	"sync"

	"etcd-wrapper/backup/format/segment"
)

// ends remembers where segments end. That never changes, and a listing doesn't tell.
type ends struct {
	mu     sync.Mutex
	known  map[stored]segment.Position
	before map[stored]segment.Position // by the time of the last examination
}

// stored is a segment of a listing: what is put in its place later is another one.
type stored struct {
	generation int
	start      segment.Position
	size       int64
	modified   int64 // nanoseconds since 1970
}

func (o Object) stored() stored {
	return stored{o.Generation, o.Start, o.Size, o.Modified.UnixNano()}
}

// forget drops what was not asked for since it was called last.
func (e *ends) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.before, e.known = e.known, map[stored]segment.Position{}
}

func (e *ends) of(one stored) (end segment.Position, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if end, known = e.known[one]; !known {
		end, known = e.before[one]
	}
	return end, known
}

func (e *ends) learn(one stored, end segment.Position) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.known[one] = end
}

// endOf is end for a segment that was examined before, or is now.
func (a *Archive) endOf(ctx context.Context, object Object, cluster string) (segment.Position, error) {
	one := object.stored()
	end, known := a.ends.of(one)
	if !known {
		var err error
		if end, _, err = a.end(ctx, object, cluster); err != nil {
			return end, err
		}
	}
	a.ends.learn(one, end)
	return end, nil
}
