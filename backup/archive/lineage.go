package archive

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/format"
	"etcd-wrapper/backup/store"
)

// Create creates the cluster manifest and a generation, unless they exist, and returns the latest generation of the
// cluster. ErrForeign reports that the store belongs to another cluster; nothing was written in that case. It may
// be repeated, and called concurrently by several members.
func (a *Archive) Create(ctx context.Context, cluster Cluster, number int) (Generation, error) {
	there, err := a.CreateCluster(ctx, cluster)
	if err != nil {
		return Generation{}, err
	}
	all, err := a.Generations(ctx)
	begins := err == nil && len(all) == 0 || number == 1 && errors.Is(err, errFirstNameless)
	if begins && there.Cluster == cluster.Cluster {
		err = a.BeginGeneration(ctx, Generation{Number: number, Cluster: there.Cluster, Owner: cluster.Owner, Etcd: cluster.Etcd, Created: cluster.Created})
		if err == nil || errors.Is(err, store.ErrExists) {
			all = make([]Generation, 1)
			all[0], err = a.Generation(ctx, number) // even if no listing includes it yet
		}
	}
	if err != nil {
		return Generation{}, err
	}
	return a.latestGeneration(all, there.Cluster, cluster.Cluster)
}

// CreateCluster creates the cluster manifest, unless it exists, and returns the existing one. If several members
// try concurrently, one of them succeeds, so a lost reply does no harm.
func (a *Archive) CreateCluster(ctx context.Context, cluster Cluster) (Cluster, error) {
	there, err := a.Cluster(ctx)
	if !errors.Is(err, store.ErrNotFound) {
		return there, err
	}
	all, err := a.Generations(ctx)
	if err != nil {
		return Cluster{}, err
	}
	if len(all) > 0 { // only the manifest is missing
		if _, err := a.latestGeneration(all, "", cluster.Cluster); err != nil {
			return Cluster{}, err
		}
		cluster.Cluster, cluster.Owner, cluster.Etcd = all[0].Cluster, all[0].Owner, all[0].Etcd
	}
	cluster.Heading, cluster.Created = newHeader(clusterKind), cluster.Created.UTC().Truncate(time.Second)
	err = a.putStatement(ctx, ClusterName, cluster)
	if errors.Is(err, store.ErrExists) {
		return a.Cluster(ctx)
	}
	return cluster, err
}

// CheckExists requests the cluster manifest and a generation by name, because a listing may not include them yet.
// store.ErrNotFound reports that one of them does not exist, and ErrForeign that another cluster has replaced it.
func (r *Reader) CheckExists(ctx context.Context, generation Generation) error {
	if _, err := r.Cluster(ctx); err != nil {
		return err
	}
	there, err := r.Generation(ctx, generation.Number)
	if err != nil {
		return err
	}
	_, err = r.latestGeneration([]Generation{there}, "", generation.Cluster)
	return err
}

// latestGeneration returns the newest generation of a cluster. If there is no generation, the store belongs to the
// founder.
func (r *Reader) latestGeneration(all []Generation, founder, cluster string) (Generation, error) {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Cluster == cluster {
			return all[i], nil
		}
	}
	if len(all) > 0 {
		founder = all[len(all)-1].Cluster
	}
	return Generation{}, fmt.Errorf("%s: %w: it was last written by cluster %s, but this is cluster %s", r.store, ErrForeign, founder, cluster)
}

// A Lineage is the history of a store's generations.
type Lineage struct {
	Generations []Generation // oldest first
	Next        int          // number for the next generation: the first one after the newest that the store does not use
	Strays      []error      // one error for each generation that does not belong to the history
}

// Newest returns the newest generation, or the zero value if there is none.
func (l Lineage) Newest() (newest Generation) {
	if len(l.Generations) > 0 {
		newest = l.Generations[len(l.Generations)-1]
	}
	return newest
}

// Generations returns the generations of the store's Lineage.
func (r *Reader) Generations(ctx context.Context) ([]Generation, error) {
	lineage, err := r.Lineage(ctx)
	return lineage.Generations, err
}

// Lineage reads the generations of the store. A generation belongs to the history if it is the oldest one, or if
// the sequence of the previous generation has ended. Anyone with write access to the store can create a
// generation.json, but the end of a sequence is the object at its next position, which an active writer creates
// itself. A generation that does not belong to the history is a stray. Strays have no effect unless they have
// verifiable backups: then the object that ends the previous generation is missing, and the error is a
// format.ErrDamaged. ErrNameless reports that the newest generation has backups but no generation.json.
func (r *Reader) Lineage(ctx context.Context) (Lineage, error) {
	lineage, err := r.readGenerations(ctx)
	if errors.Is(err, errUnlisted) { // or the generation was created in the meantime
		return r.readGenerations(ctx)
	}
	return lineage, err
}

func (r *Reader) readGenerations(ctx context.Context) (l Lineage, err error) {
	numbers, err := r.generationNumbers(ctx)
	if err != nil {
		return Lineage{}, err
	}
	nameless := 0
	for _, number := range numbers {
		generation, err := r.Generation(ctx, number)
		if err != nil && !errors.Is(err, store.ErrNotFound) && !NotVerified(err) {
			return Lineage{}, err
		}
		stray, failed := r.checkSuccessor(ctx, l.Newest(), number, err == nil)
		switch {
		case failed != nil:
			return Lineage{}, failed
		case stray != nil:
			l.Strays = append(l.Strays, stray)
		case errors.Is(err, store.ErrNotFound):
			nameless = number // generation.json is missing, but the generation has other objects
		case err != nil:
			return Lineage{}, err
		default:
			l.Generations = append(l.Generations, generation)
		}
	}
	for l.Next = l.Newest().Number + 1; slices.Contains(numbers, l.Next); {
		l.Next++
	}
	if err = r.checkNames(ctx, l.Generations, nameless); err == nil && l.Next == l.Newest().Number+1 {
		err = r.probeGenerations(ctx, l.Next, 1)
	}
	return l, err
}

// checkSuccessor returns an error if a generation must not follow the newest one, and nil if it may. If the newest
// generation has no objects, as during its deletion, any generation with a statement may follow; if its end cannot
// be verified, any generation may follow.
func (r *Reader) checkSuccessor(ctx context.Context, newest Generation, number int, stated bool) (stray, err error) {
	if newest.Number == 0 {
		return nil, nil
	}
	switch ended, err := r.generationEnd(ctx, newest); {
	case err != nil:
		return nil, err
	case ended.stored && number >= ended.successor, !ended.stored && stated:
		return nil, nil
	}
	stray = fmt.Errorf("ignoring %s in %s: generation %d has not ended", GenerationPrefix(number), r.store, newest.Number)
	head, err := r.Head(ctx, number)
	switch {
	case err == nil && !head.Empty():
		return nil, r.wrapName(GenerationPrefix(number), fmt.Errorf("%w: it has backups, but the store has no object that ends generation %d: restore that object "+
			"from an earlier version of the bucket, or delete this generation if none of your clusters created it", format.ErrDamaged, newest.Number))
	case err == nil || NotVerified(err):
		return stray, nil
	}
	return nil, err
}

// generationEnd returns how a generation ends.
func (r *Reader) generationEnd(ctx context.Context, generation Generation) (endState, error) {
	id := generation.Cluster + " " + generation.Session + " " + generation.Created.String() // the store may have been emptied
	if known, is := r.endings.Load(id); is {
		return known.(endState), nil
	}
	end := endState{successor: maxGeneration + 1, stored: true}
	head, err := r.Head(ctx, generation.Number)
	switch {
	case err == nil && head.Ending() != nil:
		end.successor = head.Ending().Successor
		r.endings.Store(id, end)
	case NotVerified(err), err == nil && head.Damaged != nil:
		return endState{stored: true}, nil // the generation may have ended
	case err == nil:
		end.stored = !head.Empty()
	}
	return end, err
}

// An endState describes the end of a generation. Once found, an end is final.
type endState struct {
	successor int  // lowest number that the next generation may have
	stored    bool // the generation has backups
}

// errFirstNameless is the ErrNameless of a store whose cluster.json names the cluster of the first generation.
var errFirstNameless = fmt.Errorf("%w", ErrNameless)

// checkNames returns ErrNameless if the newest generation with objects has backups but no statement. An older
// generation may be partly deleted.
func (r *Reader) checkNames(ctx context.Context, all []Generation, nameless int) error {
	if nameless == 0 || len(all) > 0 && nameless < all[len(all)-1].Number {
		return nil
	}
	if reported, err := r.namedRevision(ctx, nameless); err != nil || reported == 0 {
		return err
	}
	why := ErrNameless
	if len(all) == 0 {
		if _, err := r.Cluster(ctx); Unusable(err) {
			return nil // the cluster is unknown; callers report that
		}
		if nameless == 1 {
			why = errFirstNameless
		}
	}
	return r.wrapName(generationName(nameless), why)
}

// errUnlisted reports that a listing does not include an existing object.
var errUnlisted = errors.New("which exists")

// maxUnlisted is the highest generation number that ProbeGenerations requests.
const maxUnlisted = 100

// ProbeGenerations returns store.ErrUnavailable if a generation exists although a listing shows none: listings may
// lag by minutes, and nothing may be created because of such a listing. It requests each number by name. It must be
// called only if the store names a cluster.
func (r *Reader) ProbeGenerations(ctx context.Context) error {
	return r.probeGenerations(ctx, 1, maxUnlisted)
}

func (r *Reader) probeGenerations(ctx context.Context, first, count int) error {
	return forEach(count, func(i int) error {
		_, err := r.Generation(ctx, first+i)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return nil
		case err == nil || NotVerified(err):
			return &store.Unavailable{Cause: fmt.Errorf("its listing lacks %s, %w", generationName(first+i), errUnlisted)}
		}
		return err
	})
}

// maxGeneration is the highest number that fits into a name.
const maxGeneration = 999999

// generationNumbers returns, in order, the numbers of all generations with at least one object.
func (r *objectStore) generationNumbers(ctx context.Context) (all []int, err error) {
	for next, after := 0, ""; ; {
		for object, err := range r.store.List(ctx, generationsPrefix, after) {
			if err != nil {
				return nil, err
			}
			var number int
			directory, _, _ := strings.Cut(strings.TrimPrefix(object.Name, generationsPrefix), "/")
			if _, err := fmt.Sscanf(directory, "%d", &number); err == nil && number > next && number <= maxGeneration && strings.HasPrefix(object.Name, GenerationPrefix(number)) {
				all = append(all, number)
				break
			}
		}
		if len(all) == 0 || all[len(all)-1] == next {
			return all, nil
		}
		next = all[len(all)-1]
		after = GenerationPrefix(next) + "z" // sorts after all object names of the generation
	}
}

// FirstPrefix returns the prefix of the first generation with at least one object, or "" if there is none.
func (r *Reader) FirstPrefix(ctx context.Context) (string, error) {
	numbers, err := r.generationNumbers(ctx)
	if err != nil || len(numbers) == 0 {
		return "", err
	}
	return GenerationPrefix(numbers[0]), nil
}

// LastNamed returns the last revision that object names suggest, of the newest generation with any object or, if
// that has no backups yet, of the revision that was restored into it. It is for callers that cannot verify the
// objects. Names prove nothing, and the name of the last segment does not contain its end.
func (r *Reader) LastNamed(ctx context.Context) (last int64, err error) {
	numbers, err := r.generationNumbers(ctx)
	if err != nil || len(numbers) == 0 {
		return 0, err
	}
	newest := numbers[len(numbers)-1]
	last, err = r.namedRevision(ctx, newest)
	if err != nil || last > 0 || newest < 2 {
		return last, err
	}
	reserved, err := r.listReserved(ctx) // the newest restore reserved revisions above the one from which it continued
	if err != nil || len(reserved) == 0 {
		return 0, err
	}
	return max(0, slices.Max(reserved)-Margin), nil
}

// namedRevision returns the last revision that the object names of a generation suggest, or 0 if there is none.
func (r *Reader) namedRevision(ctx context.Context, generation int) (int64, error) {
	fulls, _, err := r.listSnapshots(ctx, generation)
	if err != nil {
		return 0, err
	}
	objects, err := r.Objects(ctx, generation)
	return maxNamed(fulls, objects), err
}

// maxNamed returns the last revision that object names suggest.
func maxNamed(fulls []StoredFull, objects []Object) (last int64) {
	for _, full := range fulls {
		last = max(last, full.Revision)
	}
	for _, object := range objects {
		last = max(last, object.NamedEnd().Revision-1)
	}
	return last
}
