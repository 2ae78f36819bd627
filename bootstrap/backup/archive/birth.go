package archive

import (
	"context"
	"time"

	"etcd-wrapper/bootstrap/backup/seal"
)

// Cluster is the birth certificate of what is backed up: its first cluster. A restore makes another one, in a generation of its
// own.
type Cluster struct {
	seal.Heading
	Cluster string    `json:"cluster"` // etcd's cluster id, hexadecimal
	Created time.Time `json:"created"`
}

// Generation is the history of one cluster id: from the beginning, or from a restore on.
type Generation struct {
	seal.Heading
	Number         int       `json:"number"`          // from 1 on
	Cluster        string    `json:"cluster"`         // etcd's cluster id, hexadecimal
	Parent         int       `json:"parent"`          // the generation that was restored; 0 for none
	ParentRevision int64     `json:"parent_revision"` // and up to where; 0 for none
	Created        time.Time `json:"created"`
}

// Reservation says that no revision above this one was ever handed out to a client.
type Reservation struct {
	seal.Heading
	Cluster    string    `json:"cluster"`
	Generation int       `json:"generation"`
	Revision   int64     `json:"revision"`
	Created    time.Time `json:"created"`
}

// Cluster returns the birth certificate. store.ErrNotFound says that nothing was ever kept here.
func (a *Archive) Cluster(ctx context.Context) (Cluster, error) { return Cluster{}, errUnfinished }

// Found writes the birth certificate and the first generation, unless they are there, and returns the generation. ErrForeign says that the
// store is another cluster's. It may be repeated, by several members at once.
func (a *Archive) Found(ctx context.Context, cluster string, at time.Time) (Generation, error) {
	return Generation{}, errUnfinished
}

// GenerationOf returns the newest generation of a cluster id. ErrForeign says that there is none, though there is a birth
// certificate; store.ErrNotFound that there is neither.
func (a *Archive) GenerationOf(ctx context.Context, cluster string) (Generation, error) {
	return Generation{}, errUnfinished
}

// Generations returns all of them, in order.
func (a *Archive) Generations(ctx context.Context) ([]Generation, error) { return nil, errUnfinished }

// BeginGeneration writes a generation. store.ErrExists says that its number is another's. Heading is filled in.
func (a *Archive) BeginGeneration(ctx context.Context, generation Generation) error {
	return errUnfinished
}

// Reserve writes a reservation. Heading is filled in. store.ErrExists says that there is one of that revision.
func (a *Archive) Reserve(ctx context.Context, reservation Reservation) error { return errUnfinished }

// Reserved returns the reservation of the highest revision. store.ErrNotFound says that there is none.
func (a *Archive) Reserved(ctx context.Context) (Reservation, error) {
	return Reservation{}, errUnfinished
}
