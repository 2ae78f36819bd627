package recovery

import (
	"context"
	"errors"
	"fmt"

	"etcd-wrapper/bootstrap/backup/archive"
	"etcd-wrapper/bootstrap/backup/store"
)

// claimGeneration reserves revisions and then begins the next generation, if nobody else has.
func (r *run) claimGeneration() (Event, Payload) {
	ctx, cancel := context.WithTimeout(r.ctx, patience)
	defer cancel()
	lost, err := r.claim(ctx)
	switch {
	case err != nil:
		return StoreSilent, Payload{Err: err}
	case lost != nil:
		return ClaimLost, Payload{Err: lost}
	}
	r.silent = 0
	return Claimed, Payload{}
}

// claim may be repeated. It is lost if another cluster has begun a generation, or this one has gone on already: then what was
// built is older than that.
func (r *run) claim(ctx context.Context) (lost, err error) {
	a, wanted := r.options.Archive, r.position.Generation
	generations, err := a.Generations(ctx)
	if err != nil {
		return nil, err
	}
	if n := len(generations); n == 0 || generations[n-1].Number < wanted.Number {
		if lost, err := r.wentOn(ctx); lost != nil || err != nil {
			return lost, err
		}
		err = a.Reserve(ctx, archive.Reservation{
			Cluster: wanted.Cluster, Generation: wanted.Number, Revision: r.position.Reservation, Created: wanted.Created,
		})
		if err != nil && !errors.Is(err, store.ErrExists) {
			return nil, err
		}
		if err := a.BeginGeneration(ctx, wanted); err != nil && !errors.Is(err, store.ErrExists) {
			return nil, err
		}
		if generations, err = a.Generations(ctx); err != nil {
			return nil, err
		}
	}
	newest := generations[len(generations)-1]
	if newest.Number != wanted.Number || newest.Cluster != wanted.Cluster {
		return fmt.Errorf("generation %d of cluster %s was begun meanwhile", newest.Number, newest.Cluster), nil
	}
	head, err := a.Head(ctx, wanted.Number)
	if err == nil && !head.Empty() {
		lost = fmt.Errorf("cluster %s has gone on already, up to revision %d", wanted.Cluster, head.Revision())
	}
	return lost, err
}

// wentOn tells whether what is to be replaced was served since, here, or somewhere else: there it lives if it was backed up.
func (r *run) wentOn(ctx context.Context) (lost, err error) {
	if now := r.premises(); now != r.position.Premises {
		return fmt.Errorf("when it was built %s; now %s", r.position.Premises, now), nil
	}
	if r.position.Head == 0 {
		return nil, nil
	}
	number := r.position.Generation.Number - 1
	head, err := r.options.Archive.Head(ctx, number)
	if err == nil && !head.Empty() && head.Revision() > r.position.Head {
		r.alive = sighting{r.now(), number, head.Revision()}
		lost = fmt.Errorf("generation %d has gone on meanwhile, up to revision %d", number, head.Revision())
	}
	return lost, err
}
