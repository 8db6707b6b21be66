import type { ImageJobKind } from '../../shared/jobs/jobs.ts';
import type { ImageBuilds } from '../images/image-builds.ts';
import { answer, type JobProcessors } from './job-processors.ts';

/** Handles the jobs on images. */
export const imageJobs = (builds: ImageBuilds): JobProcessors<ImageJobKind> => ({
  'image.build': async ({ payload }) => {
    builds.begin(payload);
    return answer({});
  },
});
